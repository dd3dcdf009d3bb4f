//! What vmeters that are gone have left: found, named, cleared.

use crate::files;
use crate::processes::{self, Found};
use crate::Whose;
use std::fmt;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use vmeter_tracefs::Tracefs;

/// How long clearing may take: the kernel closes what a process had open after its end.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// One thing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving(Leftover);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Leftover {
    Process(Found),
    Instance(String),
    Path(PathBuf),
}

impl fmt::Display for Leaving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Leftover::Process(found) => write!(f, "process {} ({})", found.pid, found.name),
            Leftover::Instance(name) => write!(f, "tracefs instance {name}"),
            Leftover::Path(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What is there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Leavings(Vec<Leaving>);

impl Leavings {
    /// What every vmeter that is gone has left. `places` are folders of vmeter's own, in which
    /// temporary files are looked for as well.
    pub fn of_earlier(places: &[PathBuf]) -> Self {
        Self::find(Whose::Nobody, places)
    }

    pub(crate) fn find(whose: Whose, places: &[PathBuf]) -> Self {
        let processes = processes::find(whose).into_iter().map(Leftover::Process);
        let instances = Tracefs::find().map(|tracefs| tracefs.owned()).unwrap_or_default();
        let instances = instances.into_iter().filter(|(owner, _)| whose.has(owner));
        let instances = instances.map(|(_, name)| Leftover::Instance(name));
        let paths = files::find(whose, places).into_iter().map(Leftover::Path);
        Leavings(processes.chain(instances).chain(paths).map(Leaving).collect())
    }

    /// What was found.
    pub fn all(&self) -> &[Leaving] {
        &self.0
    }

    /// Ends and removes it; gives what could not be.
    pub fn clear(self, places: &[PathBuf]) -> Self {
        clear(Whose::Nobody, places, self)
    }
}

/// Again and again, since a process may start another while it is looked at, and what it had
/// open is closed after its end; gives what is left.
pub(crate) fn clear(whose: Whose, places: &[PathBuf], mut left: Leavings) -> Leavings {
    let begin = Instant::now();
    while !left.0.is_empty() && begin.elapsed() < PATIENCE {
        let tracefs = Tracefs::find();
        let processes = left.0.iter().any(|leaving| matches!(leaving.0, Leftover::Process(_)));
        for Leaving(thing) in &left.0 {
            match thing {
                Leftover::Process(found) => processes::end(found),
                // What processes write to goes after them.
                Leftover::Instance(_) | Leftover::Path(_) if processes => {}
                Leftover::Instance(name) => {
                    let _ = tracefs.as_ref().map(|tracefs| tracefs.remove(name));
                }
                Leftover::Path(path) => files::remove(path),
            }
        }
        left = Leavings::find(whose, places);
        if !left.0.is_empty() {
            std::thread::sleep(PAUSE);
        }
    }
    left
}
