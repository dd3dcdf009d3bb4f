//! A page in a real browser.

use std::path::Path;
use std::process::Command;

/// What a browser made of a page.
pub struct Opened {
    /// The document after its scripts and handlers.
    pub dom: String,
    /// What the console says: violations of the page's policy, errors.
    pub console: Vec<String>,
}

/// Opens a page without a network; none where there is no Chromium.
pub fn open(profile: &Path, page: &Path) -> Option<Opened> {
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("file://{}", page.display()))
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: no chromium here (make test installs it)");
        return None;
    };
    let log = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{log}");
    let console = log.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned);
    let dom = String::from_utf8_lossy(&output.stdout).into_owned();
    Some(Opened { dom, console: console.collect() })
}
