//! How a VMM with an API saves its machine, and goes on from what was saved.
//!
//! The requests are HTTP over a Unix socket that the VMM makes. vmeter sends one at a time and reads one
//! answer: for that an HTTP library would be the largest dependency of this crate.

use std::ffi::{OsStr, OsString};
use std::fmt::{self, Debug, Display};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Stands in a command line for the path of the API's socket.
pub const SOCKET: &str = "{api-socket}";
/// Stands in a request for the path of the socket at which vmeter serves the pages of the guest's RAM.
pub const HANDLER: &str = "{page-handler}";
/// Most of an answer that is read, bytes.
const MAX_ANSWER: u64 = 64 << 10;
/// Between two looks at whether anybody still waits for an answer.
const ASK: Duration = Duration::from_millis(100);
/// Between two looks for a socket that the VMM has yet to make.
const LOOK: Duration = Duration::from_micros(100);

/// What a VMM can do with snapshots.
pub trait Snapshots: Sync + Debug {
    /// The ways in which it restores, as `vmeter restore --method` calls them.
    fn methods(&self) -> &'static [&'static str];

    /// True if it maps the snapshot's RAM file in this way.
    fn maps(&self, method: &str) -> bool;

    /// The command line `argv`, with an API at [`SOCKET`].
    fn with_api(&self, argv: &[OsString]) -> Vec<OsString>;

    /// What is requested of a running machine to save it into the folder `image`.
    fn save(&self, image: &Path) -> Vec<Request>;

    /// The command line that restores the machine `argv` from the folder `image`.
    fn restored(&self, method: &str, argv: &[OsString], image: &Path) -> Vec<OsString>;

    /// What is requested of the VMM that this command line starts.
    fn load(&self, method: &str, image: &Path) -> Vec<Request>;

    /// The RAM's file, if the launcher serves its pages in this way.
    fn served(&self, method: &str, image: &Path) -> Option<PathBuf> {
        let _ = (method, image);
        None
    }
}

/// A request to a VMM's API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `PUT`, `PATCH`.
    pub verb: &'static str,
    /// What of, e.g. `/snapshot/load`.
    pub path: &'static str,
    /// JSON; none if there is nothing to say.
    pub body: Option<String>,
}

impl Request {
    /// A request with a body.
    pub fn new(verb: &'static str, path: &'static str, body: &serde_json::Value) -> Self {
        Request { verb, path, body: Some(body.to_string()) }
    }

    /// A request without one.
    pub fn bare(verb: &'static str, path: &'static str) -> Self {
        Request { verb, path, body: None }
    }

    /// Sends it, and waits for the answer, until `is_over` says that nobody wants it any more.
    ///
    /// # Errors
    /// When the VMM ends, does not answer in time, or refuses: with its words.
    pub fn send(
        &self,
        socket: &UnixStream,
        timeout: Duration,
        is_over: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        socket.set_read_timeout(Some(ASK))?;
        socket.set_write_timeout(Some(timeout))?;
        let body = self.body.as_deref().unwrap_or_default();
        let mut text =
            format!("{self} HTTP/1.1\r\nHost: localhost\r\nAccept: application/json\r\n");
        if self.body.is_some() {
            text.push_str("Content-Type: application/json\r\n");
        }
        text.push_str(&format!("Content-Length: {}\r\n\r\n{body}", body.len()));
        let mut out = socket;
        out.write_all(text.as_bytes())?;
        let patient = Patient { socket, timeout, deadline: Instant::now() + timeout, is_over };
        let (status, said) = answer(patient)?;
        match status {
            200..=299 => Ok(()),
            _ => Err(io::Error::other(format!("{self}: status {status}: {said}"))),
        }
    }
}

impl Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.path)
    }
}

/// A socket that is asked again and again.
struct Patient<'a> {
    socket: &'a UnixStream,
    timeout: Duration,
    deadline: Instant,
    is_over: &'a dyn Fn() -> bool,
}

impl Read for Patient<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut socket = self.socket;
            match socket.read(buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            if (self.is_over)() {
                return Err(io::Error::other("interrupted"));
            }
            if Instant::now() >= self.deadline {
                let seconds = self.timeout.as_secs();
                return Err(io::Error::other(format!("no answer within {seconds} s")));
            }
        }
    }
}

/// The status of an answer, and what it says.
fn answer(socket: impl Read) -> io::Result<(u16, String)> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut reader = BufReader::new(socket.take(MAX_ANSWER));
    let mut line = String::new();
    reader.read_line(&mut line)?;
    let status = line.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    let status: u16 = status
        .and_then(|status| status.trim().parse().ok())
        .ok_or_else(|| bad(&format!("expected an HTTP status, found {line:?}")))?;
    let mut length = 0;
    loop {
        line.clear();
        if reader.read_line(&mut line)? == 0 || line.trim_end().is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':') {
            if name.eq_ignore_ascii_case("content-length") {
                length =
                    value.trim().parse().map_err(|_| bad("a Content-Length that is no number"))?;
            }
        }
    }
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body)?;
    let said = String::from_utf8_lossy(&body);
    let said = said.chars().map(|c| if c.is_control() { ' ' } else { c }).take(300).collect();
    Ok((status, said))
}

/// Connects to a VMM's API as soon as its socket is there; none if `is_over` says so first, or after `timeout`.
pub fn connect(path: &Path, timeout: Duration, is_over: &dyn Fn() -> bool) -> Option<UnixStream> {
    let deadline = Instant::now() + timeout;
    while Instant::now() < deadline && !is_over() {
        if let Ok(socket) = UnixStream::connect(path) {
            return Some(socket);
        }
        std::thread::sleep(LOOK);
    }
    None
}

/// A command line with the path of a socket in the place of [`SOCKET`].
pub fn with_socket(argv: &[OsString], path: &Path) -> Vec<OsString> {
    let path = path.display().to_string();
    let filled = |word: &OsString| match word.to_str() {
        Some(text) if text.contains(SOCKET) => text.replace(SOCKET, &path).into(),
        _ => word.clone(),
    };
    argv.iter().map(filled).collect()
}

/// A command line without some options (`--name VALUE` or `--name=VALUE`) and flags (`--name`).
pub(crate) fn without(argv: &[OsString], options: &[&str], flags: &[&str]) -> Vec<OsString> {
    split(argv, options, flags).1
}

/// These options and flags of a command line, and nothing else.
pub(crate) fn only(argv: &[OsString], options: &[&str], flags: &[&str]) -> Vec<OsString> {
    split(argv, options, flags).0
}

/// The words of these options and flags, and all others.
fn split(argv: &[OsString], options: &[&str], flags: &[&str]) -> (Vec<OsString>, Vec<OsString>) {
    let (mut named, mut others) = (Vec::new(), Vec::new());
    let mut words = argv.iter().cloned();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let name = text.strip_prefix("--").unwrap_or_default();
        let joined = name.split_once('=').map(|(name, _)| name);
        if options.contains(&name) {
            named.push(word);
            named.extend(words.next());
        } else if flags.contains(&name) || joined.is_some_and(|name| options.contains(&name)) {
            named.push(word);
        } else {
            others.push(word);
        }
    }
    (named, others)
}

/// A command line with one more option.
pub(crate) fn and(mut argv: Vec<OsString>, name: &str, value: impl AsRef<OsStr>) -> Vec<OsString> {
    argv.extend([name.into(), value.as_ref().to_owned()]);
    argv
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split(' ').map(OsString::from).collect()
    }

    #[test]
    fn an_answer_has_a_status_and_the_words_of_its_length() {
        let none = b"HTTP/1.1 204 \r\nServer: x\r\nConnection: keep-alive\r\n\r\nrest";
        assert_eq!(answer(&none[..]).expect("an answer"), (204, String::new()));
        let why = b"HTTP/1.1 400 Bad\r\ncontent-length: 5\r\n\r\n{\"a\"}more";
        assert_eq!(answer(&why[..]).expect("an answer"), (400, "{\"a\"}".into()));
        for bad in [
            &b""[..],
            b"SSH-2.0\r\n",
            b"HTTP/1.1 x\r\n\r\n",
            b"HTTP/1.1 200 \r\nContent-Length: -1\r\n\r\n",
        ] {
            assert!(answer(bad).is_err(), "{bad:?}");
        }
        let endless = std::io::repeat(b'a');
        assert!(answer(endless).is_err());
    }

    #[test]
    fn a_refusal_is_told_in_the_vmms_words() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let request = Request::new("PUT", "/snapshot/load", &serde_json::json!({ "a": 1 }));
        let mut out = &theirs;
        out.write_all(b"HTTP/1.1 400 \r\nContent-Length: 9\r\n\r\nno file\x1b!").expect("sent");
        let error = request
            .send(&ours, Duration::from_secs(5), &|| false)
            .expect_err("refused")
            .to_string();
        assert_eq!(error, "PUT /snapshot/load: status 400: no file !");
        let unasked = request.send(&ours, Duration::from_secs(5), &|| true).expect_err("over");
        assert_eq!(unasked.to_string(), "interrupted");
        let late = request.send(&ours, Duration::ZERO.max(ASK), &|| false).expect_err("late");
        assert!(late.to_string().contains("no answer"), "{late}");
        let mut sent = vec![0; 4096];
        let count = (&theirs).read(&mut sent).expect("a request");
        let sent = String::from_utf8_lossy(&sent[..count]).into_owned();
        assert!(sent.starts_with("PUT /snapshot/load HTTP/1.1\r\n"), "{sent}");
        assert!(sent.contains("Content-Length: 7\r\n\r\n{\"a\":1}"), "{sent}");
    }

    #[test]
    fn options_are_taken_out_with_their_values() {
        let argv = words("fc --no-api --config-file f --id=7 --config-file=g x --api-sock");
        assert_eq!(without(&argv, &["config-file", "id", "api-sock"], &["no-api"]), words("fc x"));
        assert_eq!(only(&argv, &["id"], &["no-api"]), words("--no-api --id=7"));
        let argv = and(argv[..1].to_vec(), "--api-sock", SOCKET);
        assert_eq!(with_socket(&argv, Path::new("/s")), words("fc --api-sock /s"));
    }

    proptest::proptest! {
        #[test]
        fn no_answer_makes_it_panic(
            bytes in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..200),
            status in "[0-9]{0,5}",
            length in "[-0-9]{0,20}",
        ) {
            let _ = answer(&bytes[..]);
            let head = format!("HTTP/1.1 {status} x\r\nContent-Length: {length}\r\n\r\n");
            if let Ok((_, said)) = answer([head.as_bytes(), &bytes].concat().as_slice()) {
                proptest::prop_assert!(said.chars().count() <= 300);
            }
        }
    }
}
