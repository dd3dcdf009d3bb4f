//! Whether a session's folder was made here, by this user.
//!
//! To go on with a session is to execute what its files say: a VMM, a preparation, a build. A
//! folder that came from elsewhere is data, so going on with it shows these commands and asks.
//! What vmeter writes itself carries a seal: an HMAC (RFC 2104) over the file's text, its name
//! and the number of the folder's inode, under a key in the user's state folder. A copy, an
//! edited file or another user's folder has none that fits.

use crate::dirs::{state_dir, SESSION};
use crate::failure::usage;
use crate::progress::Watch;
use anyhow::{Context, Result};
use hmac::{Hmac, Mac};
use serde_json::Value;
use sha2::Sha256;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use vmeter_base::{files, shell};

/// What a seal begins with, and what stands in its place while it is made.
const TAG: &str = "vmeter-seal:";
const NONE: &str = "0000000000000000000000000000000000000000000000000000000000000000";
/// Files whose text is executed, or says what is.
const FILES: [&str; 4] = [SESSION, "range.json", "slurm.json", "job.sh"];
const MAX_FILE: u64 = 64 << 20;
const KEY: &str = "key";
const KEY_BYTES: usize = 32;
/// Commands that are shown; what is hidden behind many is no less dangerous, so their number
/// is said.
const SHOWN: usize = 40;
/// Nesting of JSON is bounded by its parser.
const NAMES: [&str; 8] = ["vmm", "kernel", "initrd", "firmware", "prepare", "build", "run", "repo"];

type Key = [u8; KEY_BYTES];

/// The text of a JSON file with a seal as its first field, for a folder that is there. Without
/// a state folder to keep a key in, the text as it is.
fn sign_json(dir: &Path, name: &str, text: Vec<u8>) -> Vec<u8> {
    let Some(rest) = text.strip_prefix(b"{") else { return text };
    let head = format!("{{\n  \"seal\": \"{TAG}{NONE}\",");
    sealed(dir, name, [head.as_bytes(), rest].concat()).unwrap_or(text)
}

/// The text of a script with a seal in a comment after its first line.
pub fn sign_script(dir: &Path, name: &str, text: &str) -> Vec<u8> {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    let whole = format!("{first}\n# {TAG}{NONE}\n{rest}").into_bytes();
    sealed(dir, name, whole).unwrap_or_else(|| text.as_bytes().to_vec())
}

/// Writes a file of a session's folder that says what is executed, whole; sealed if the session
/// is the user's own.
///
/// # Errors
/// Any error of the file system, a full disk among them.
pub fn write(dir: &Path, name: &str, text: Vec<u8>, ours: bool) -> Result<()> {
    let text = if ours { sign_json(dir, name, text) } else { text };
    let path = dir.join(name);
    files::write_atomic(&path, &text).with_context(|| format!("cannot write {}", path.display()))
}

/// True if every file in the folder that --resume would act on is as this user's vmeter wrote
/// it there.
pub fn is_ours(dir: &Path) -> bool {
    let there = |name: &&&str| dir.join(name).symlink_metadata().is_ok();
    let mut files = FILES.iter().filter(there).peekable();
    files.peek().is_some() && files.all(|name| is_sealed(dir, name).unwrap_or(false))
}

/// Nothing, if the folder may be gone on with: it is this user's own, or `trusted`, or the user
/// says so when asked.
///
/// # Errors
/// Class usage: it is not, and nobody can be asked, or says no; with what would be executed.
pub fn check(dir: &Path, trusted: bool, watch: &mut Watch<'_>) -> Result<()> {
    if trusted || is_ours(dir) {
        return Ok(());
    }
    let shown = dir.display();
    let mut text = format!(
        "This user's vmeter did not make {shown}, or something copied or changed it later. If \
            you resume it, vmeter executes these commands:"
    );
    let all = commands(dir);
    for line in all.iter().take(SHOWN) {
        let _ = write!(text, "\n  {}", vmeter_render::text::neutralise(line));
    }
    if all.len() > SHOWN {
        let _ = write!(text, "\n  and {} more, in its session.json", all.len() - SHOWN);
    }
    match watch.progress.confirm(&text) {
        Some(true) => Ok(()),
        Some(false) => Err(usage(format!("{shown} was not resumed"))),
        None => Err(usage(format!("{text}\nIf that is what you want, give --trust"))),
    }
}

/// What the files of a folder have executed, a line each.
fn commands(dir: &Path) -> Vec<String> {
    let mut all = Vec::new();
    let mut seen = BTreeSet::new();
    for name in FILES {
        let Ok(bytes) = files::read_limited(&dir.join(name), MAX_FILE) else { continue };
        match serde_json::from_slice::<Value>(&bytes) {
            Ok(value) => collect(&value, &mut all),
            Err(_) => all.push(format!("{name}, a script or damaged")),
        }
    }
    all.retain(|line| seen.insert(line.clone()));
    all
}

fn collect(value: &Value, all: &mut Vec<String>) {
    match value {
        Value::Array(values) => values.iter().for_each(|value| collect(value, all)),
        Value::Object(fields) => {
            let executed = |name: &str| !["host", "provenance"].contains(&name);
            for (name, value) in fields.iter().filter(|(name, _)| executed(name)) {
                match value {
                    Value::String(text) if NAMES.contains(&name.as_str()) => {
                        all.push(format!("{name}: {text}"));
                    }
                    Value::Array(words)
                        if ["command", "vmm_arg"].contains(&name.as_str()) && !words.is_empty() =>
                    {
                        let words = words.iter().map(|word| word.as_str().unwrap_or_default());
                        all.push(format!("{name}: {}", shell::join(words)));
                    }
                    Value::Array(pairs) if name == "parameters" => {
                        all.extend(pairs.iter().filter_map(put_in));
                    }
                    _ => collect(value, all),
                }
            }
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

/// What a point of a sweep puts into commands, where they have its name in braces. Numbers are
/// no commands.
fn put_in(pair: &Value) -> Option<String> {
    let name = pair.get(0).and_then(Value::as_str).unwrap_or_default();
    let value = pair.get(1).and_then(Value::as_str).unwrap_or_default();
    value.parse::<f64>().is_err().then(|| format!("{{{name}}}: {value}"))
}

fn is_sealed(dir: &Path, name: &str) -> Option<bool> {
    let mut bytes = files::read_limited(&dir.join(name), MAX_FILE).ok()?;
    let found = signature_of(&bytes)?;
    let told = bytes.get(found.clone())?.to_vec();
    bytes.get_mut(found)?.copy_from_slice(NONE.as_bytes());
    let mut given = [0; KEY_BYTES];
    for (byte, digits) in given.iter_mut().zip(told.chunks_exact(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
    }
    Some(mac(&existing_key()?, dir, name, &bytes)?.verify_slice(&given).is_ok())
}

/// Where the seal's digits are: the first, since what is written after it can be anything.
fn signature_of(bytes: &[u8]) -> Option<std::ops::Range<usize>> {
    let tag = TAG.as_bytes();
    let at = bytes.windows(tag.len()).position(|part| part == tag)? + tag.len();
    let digits = at..at + NONE.len();
    bytes.get(digits.clone())?.iter().all(u8::is_ascii_hexdigit).then_some(digits)
}

fn sealed(dir: &Path, name: &str, mut text: Vec<u8>) -> Option<Vec<u8>> {
    let place = signature_of(&text)?;
    let seal = mac(&own_key()?, dir, name, &text)?.finalize().into_bytes();
    let digits: String = seal.iter().map(|byte| format!("{byte:02x}")).collect();
    text.get_mut(place)?.copy_from_slice(digits.as_bytes());
    Some(text)
}

fn mac(key: &Key, dir: &Path, name: &str, text: &[u8]) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).ok()?;
    let inode = fs::metadata(dir).ok()?.ino();
    mac.update(name.as_bytes());
    mac.update(&[0]);
    mac.update(&inode.to_le_bytes());
    mac.update(text);
    Some(mac)
}

fn existing_key() -> Option<Key> {
    files::read_limited(&state_dir().ok()?.join(KEY), KEY_BYTES as u64).ok()?.try_into().ok()
}

/// The user's key, made if it is not there. Of two vmeters that make one at once, the first
/// counts for both.
fn own_key() -> Option<Key> {
    if let Some(key) = existing_key() {
        return Some(key);
    }
    let state = state_dir().ok()?;
    files::private_folder(&state).ok()?;
    let mut key = [0; KEY_BYTES];
    rustix::rand::getrandom(&mut key, rustix::rand::GetRandomFlags::empty()).ok()?;
    // One that is there already is it.
    let _ = files::write_new(&state.join(KEY), &key);
    existing_key()
}
