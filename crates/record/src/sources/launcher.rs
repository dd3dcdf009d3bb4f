//! What vmeter does for a VMM that goes on from a snapshot, as its launcher: it requests that of the VMM's API,
//! and serves the pages of the guest's RAM if the VMM leaves that to another process.
//!
//! The VMM makes its API's socket; from its exec on vmeter looks for that every 0.1 ms, so that no launcher's own pause
//! is a part of the restore.

use super::read_bounded;
use super::snapshot_pages::{owner_of, owners_in, Touched, UNKNOWN};
use crate::owners::PAGE;
use crate::recorder::{self, Context, Live, NoParameters, Recorder, Saved, SourceError};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;
use vmeter_base::clock;
use vmeter_base::scratch::Scratch;
use vmeter_machine::page_handler::{Handler, Served};
use vmeter_machine::plan::LaunchPlan;
use vmeter_machine::snapshots::{connect, with_socket, Request, HANDLER};
use vmeter_model::run::SourceRecord;
use vmeter_model::{Event, EventKind, Ns};

/// Name in [`SourceRecord::name`].
pub const NAME: &str = "launcher";

/// A line for each request: when it was sent and answered (`CLOCK_MONOTONIC`, ns), and what it was.
const REQUESTS: &str = "launcher-requests.txt";
/// A line for each page that was served: when its fault was read (`CLOCK_MONOTONIC`, ns), how long it took until the
/// page was there (ns), first page of the file, how many, `written` or `read` as the fault said it (KVM's often say a write), owner.
const PAGES: &str = "launcher-pages.txt";
/// The wait for the socket or one look for it, ns.
const ERROR_NS: Ns = 200_000;
/// How long the VMM may take to make its socket, and to answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Pages that are served one after another with no longer a rest than this are one stretch of work, ns.
const REST: Ns = 200_000;
/// Stretches are joined further where there would be more.
const MOST_STRETCHES: usize = 500;
/// What their spans are called.
const PAGE_FAULTS: &str = "page faults";

/// The launcher.
pub struct Launcher;

/// A request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answered {
    from: Ns,
    to: Ns,
    what: String,
}

/// A page that was served, or some that are one large page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServedPage {
    /// When its fault was read, ns of `CLOCK_MONOTONIC`.
    pub at: Ns,
    /// How long it took until it was there, ns.
    pub took: Ns,
    /// Which, and whose.
    pub page: Touched,
}

/// What the launcher did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Work {
    requests: Vec<Answered>,
    /// Pages, in the order in which they were served.
    pub served: Vec<ServedPage>,
}

impl Recorder for Launcher {
    type Parameters = NoParameters;
    type Raw = Work;
    const NAME: &'static str = NAME;

    fn live(&self, context: &Context<'_>) -> Option<Box<dyn Live>> {
        let snapshot = context.snapshot.filter(|snapshot| !snapshot.requests.is_empty())?;
        Some(Box::new(Recording {
            requests: snapshot.requests.clone(),
            served: snapshot.served.clone(),
            owners: snapshot.owners.clone(),
            dir: context.dir.to_owned(),
            folder: None,
            handler: None,
            speaking: None,
        }))
    }

    fn read(
        &self,
        dir: &Path,
        source: &SourceRecord,
        _: NoParameters,
    ) -> Result<Self::Raw, SourceError> {
        let requests = parse(&String::from_utf8_lossy(&read_bounded(dir, source, 0)?));
        let served = match source.files.len() {
            0 | 1 => Vec::new(),
            _ => pages(&String::from_utf8_lossy(&read_bounded(dir, source, 1)?)),
        };
        Ok(Work { requests, served })
    }

    fn decode(
        &self,
        raw: &Self::Raw,
        source: &SourceRecord,
        saved: &Saved<'_>,
    ) -> Result<Vec<Event>, SourceError> {
        let event = |from: Ns, to: Ns, what: &str| Event {
            at: to.saturating_sub(saved.run.exec_ns),
            error_ns: source.error_ns,
            source: NAME.into(),
            insns: None,
            what: EventKind::Launched { what: what.into(), ns: to.saturating_sub(from).max(0) },
        };
        let requests =
            raw.requests.iter().map(|request| event(request.from, request.to, &request.what));
        let end = saved.run.exec_ns.saturating_add(saved.run.total_ns);
        let stretches = stretches(&raw.served).into_iter().filter(|(from, _)| *from < end);
        let served = stretches.map(|(from, to)| event(from, to.min(end), PAGE_FAULTS));
        Ok(requests.chain(served).collect())
    }
}

fn parse(text: &str) -> Vec<Answered> {
    let line = |line: &str| {
        let mut words = line.splitn(3, ' ');
        let (from, to) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        Some(Answered { from, to, what: words.next()?.to_owned() })
    };
    text.lines().filter_map(line).collect()
}

fn pages(text: &str) -> Vec<ServedPage> {
    let line = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (at, took) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let (first, pages) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let written = words.next()? == "written";
        let owner = words.next()?.to_owned();
        Some(ServedPage { at, took, page: Touched { file: 0, first, pages, written, owner } })
    };
    text.lines().filter_map(line).collect()
}

/// From when to when pages were served without a long rest.
fn stretches(served: &[ServedPage]) -> Vec<(Ns, Ns)> {
    let mut rest = REST;
    loop {
        let mut found: Vec<(Ns, Ns)> = Vec::new();
        for one in served {
            let to = one.at.saturating_add(one.took);
            match found.last_mut() {
                Some(last) if one.at <= last.1.saturating_add(rest) => last.1 = last.1.max(to),
                _ => found.push((one.at, to)),
            }
        }
        if found.len() <= MOST_STRETCHES {
            return found;
        }
        rest = rest.saturating_mul(2);
    }
}

/// What the thread noted, and why it could go no further.
type Said = (String, Option<String>);

struct Recording {
    requests: Vec<Request>,
    /// The RAM's file, if its pages are to be served.
    served: Option<PathBuf>,
    /// A file that says whose they are.
    owners: Option<PathBuf>,
    dir: PathBuf,
    /// The folder of the sockets.
    folder: Option<Scratch>,
    handler: Option<Handler>,
    speaking: Option<(Arc<AtomicBool>, JoinHandle<Said>)>,
}

impl Recording {
    /// Listens for page faults, if the launcher serves them, and looks for the VMM's API.
    fn begin(&mut self, folder: &Scratch) -> std::io::Result<()> {
        if let Some(ram) = &self.served {
            let socket = folder.path().join("pages");
            self.handler = Some(Handler::start(&socket, ram)?);
            let socket = socket.display().to_string();
            for body in self.requests.iter_mut().filter_map(|request| request.body.as_mut()) {
                *body = body.replace(HANDLER, &socket);
            }
        }
        let (path, requests) = (file(folder), self.requests.clone());
        let is_over = Arc::new(AtomicBool::new(false));
        let over = is_over.clone();
        let thread = std::thread::Builder::new().name(NAME.into());
        self.speaking = Some((is_over, thread.spawn(move || speak(&requests, &path, &over))?));
        Ok(())
    }

    fn end(&mut self) -> Option<Said> {
        let (is_over, thread) = self.speaking.take()?;
        is_over.store(true, Ordering::Relaxed);
        thread.join().ok()
    }

    fn write(&self, name: &str, text: &str) -> Result<(), SourceError> {
        let path = self.dir.join(name);
        std::fs::write(&path, text).map_err(|error| SourceError::Io { path, error })
    }

    /// Notes the pages that were served, if that was to be.
    fn note_served(&mut self) -> Result<bool, SourceError> {
        let Some((served, failed)) = self.handler.take().and_then(Handler::end) else {
            return Ok(false);
        };
        if let Some(why) = failed {
            return Err(SourceError::Other(format!(
                "vmeter could not serve pages, and ended the VMM: {why}"
            )));
        }
        self.write(PAGES, &served_text(&served, self.owners.as_deref()))?;
        Ok(true)
    }
}

fn served_text(served: &[Served], owners: Option<&Path>) -> String {
    let known = owners_in(owners);
    let mut text = String::new();
    for one in served {
        let how = if one.written { "written" } else { "read" };
        let mut took = one.took;
        let mut pages = one.offset / PAGE..(one.offset + one.bytes).div_ceil(PAGE);
        while let Some(first) = pages.next() {
            // A large page is a line for each owner, and its time is the first's.
            let owner = owner_of(&known, first).unwrap_or(UNKNOWN);
            let same = |page: &u64| owner_of(&known, *page).unwrap_or(UNKNOWN) == owner;
            let count = 1 + pages.clone().take_while(same).count() as u64;
            pages.start = first + count;
            let _ = writeln!(text, "{} {took} {first} {count} {how} {owner}", one.at);
            took = 0;
        }
    }
    text
}

fn file(folder: &Scratch) -> PathBuf {
    folder.path().join("api")
}

fn speak(requests: &[Request], path: &Path, is_over: &AtomicBool) -> Said {
    let mut text = String::new();
    let is_over = || is_over.load(Ordering::Relaxed);
    let Some(socket) = connect(path, PATIENCE, &is_over) else {
        return (text, Some("the VMM made no socket for its API".into()));
    };
    for request in requests {
        let from = clock::monotonic();
        if let Err(error) = request.send(&socket, PATIENCE, &is_over) {
            return (text, Some(error.to_string()));
        }
        let _ = writeln!(text, "{from} {} {request}", clock::monotonic());
    }
    (text, None)
}

impl Live for Recording {
    /// An unwatched VMM is not stopped at its exec: the thread is there before the VMM.
    fn prepare(&mut self, plan: &mut LaunchPlan) -> Result<(), SourceError> {
        let failed = |error| SourceError::Other(format!("{NAME}: {error}"));
        let folder = match self.folder.take() {
            // Of a wrapper's VMM it is prepared again, and goes on.
            Some(folder) => folder,
            None => {
                let folder = Scratch::new().map_err(failed)?;
                self.begin(&folder).map_err(failed)?;
                folder
            }
        };
        plan.argv = with_socket(&plan.argv, &file(&folder));
        self.folder = Some(folder);
        Ok(())
    }

    fn finish(mut self: Box<Self>, _: Ns) -> Result<Option<SourceRecord>, SourceError> {
        let Some((text, failed)) = self.end() else { return Ok(None) };
        let has_served = self.note_served()?;
        if let Some(why) = failed {
            return Err(SourceError::Other(format!("the VMM's API: {why}")));
        }
        self.write(REQUESTS, &text)?;
        let files: &[&str] = if has_served { &[REQUESTS, PAGES] } else { &[REQUESTS] };
        let clock = "CLOCK_MONOTONIC before a request and after its answer";
        Ok(Some(recorder::record::<Launcher>(files, clock, ERROR_NS, &NoParameters {})))
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        // Its threads end with its run, whatever became of that.
        drop(self.end());
        drop(self.handler.take().and_then(Handler::end));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write as _};
    use std::os::unix::net::UnixListener;

    #[test]
    fn requests_are_sent_as_soon_as_the_socket_is_there() {
        let folder = Scratch::new().expect("a folder");
        let path = file(&folder);
        let requests = [Request::bare("PUT", "/a"), Request::bare("PUT", "/b")];
        let over = AtomicBool::new(false);
        let said = std::thread::scope(|scope| {
            let speaking = scope.spawn(|| speak(&requests, &path, &over));
            std::thread::sleep(Duration::from_millis(20));
            let (mut socket, _) =
                UnixListener::bind(&path).expect("bound").accept().expect("a client");
            for answer in ["HTTP/1.1 204 \r\n\r\n", "HTTP/1.1 400 \r\nContent-Length: 2\r\n\r\nno"]
            {
                let mut request = [0; 1024];
                assert!(socket.read(&mut request).expect("a request") > 0);
                socket.write_all(answer.as_bytes()).expect("answered");
            }
            speaking.join().expect("ended")
        });
        let answered = parse(&said.0);
        assert_eq!(answered.len(), 1, "{said:?}");
        assert!(answered[0].what == "PUT /a" && answered[0].to >= answered[0].from);
        assert_eq!(said.1.as_deref(), Some("PUT /b: status 400: no"));
        over.store(true, Ordering::Relaxed);
        let at = |at, took| ServedPage {
            at,
            took,
            page: Touched { file: 0, first: 1, pages: 1, written: true, owner: "a b".into() },
        };
        assert_eq!(pages("5 6 1 1 written a b\nx\n"), [at(5, 6)]);
        let all = [at(0, 10), at(150_000, 10), at(900_000, 10)];
        assert_eq!(stretches(&all), [(0, 150_010), (900_000, 900_010)]);
        let many: Vec<ServedPage> = (0..2_000).map(|n| at(n * 1_000_000, 10)).collect();
        assert!(stretches(&many).len() <= MOST_STRETCHES);
        let nobody = speak(&requests, Path::new("/nonexistent/socket"), &over);
        assert!(nobody.1.is_some_and(|why| why.contains("no socket")));
    }

    proptest::proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "[0-9 a-z\\n]{0,200}", numbers in ".{0,100}") {
            for text in [&text, &numbers] {
                parse(text);
                stretches(&pages(text));
            }
        }
    }
}
