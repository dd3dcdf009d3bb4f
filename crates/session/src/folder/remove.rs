//! Removing what vmeter wrote into a session's folder, and nothing else.
//!
//! Everything is looked at before anything goes. Links are not followed, and are left: vmeter
//! makes none. `session.json` goes first, so that what is half removed is no session.

use super::names::{Kind, Own, SESSION};
use super::{strangers, Folder, MARKER_AND_LOCK};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What is in a session's folder.
#[derive(Debug, Default)]
pub struct Removal {
    files: Vec<PathBuf>,
    /// Folders of which all is vmeter's.
    trees: Vec<PathBuf>,
    /// Those that hold what no build made, and what that is, as seen from the folder.
    doubted: Vec<(PathBuf, String)>,
    /// Folders, those inside before those around them.
    folders: Vec<PathBuf>,
    /// What is not vmeter's, as seen from the folder.
    left: Vec<String>,
}

impl Removal {
    /// Looks at all that is in the folder.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn of(folder: &Folder) -> io::Result<Self> {
        let mut found = Removal::default();
        found.look(folder.dir(), Kind::Session, "")?;
        Ok(found)
    }

    /// What is not vmeter's and will stay, as seen from the folder.
    pub fn left(&self) -> &[String] {
        &self.left
    }

    /// What vmeter made and what has come into it since, as seen from the folder: it stays, and
    /// all around it, unless it is [forced](Removal::force).
    pub fn doubts(&self) -> impl Iterator<Item = &str> {
        self.doubted.iter().map(|(_, what)| what.as_str())
    }

    /// Removes that as well.
    pub fn force(&mut self) {
        self.trees.extend(self.doubted.drain(..).map(|(tree, _)| tree));
    }

    /// What is in the folder of a run.
    fn of_run(dir: &Path) -> io::Result<Self> {
        let mut found = Removal::default();
        found.look(dir, Kind::Run, "")?;
        Ok(found)
    }

    fn look(&mut self, dir: &Path, kind: Kind, shown: &str) -> io::Result<()> {
        let mut entries = fs::read_dir(dir)?.collect::<io::Result<Vec<_>>>()?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (name, found, path) = (entry.file_name(), entry.file_type()?, entry.path());
            let shown = format!("{shown}{}", name.to_string_lossy());
            let own = name.to_str().and_then(|name| kind.own(dir, name));
            match own {
                Some(Own::File) if found.is_file() => self.files.push(path),
                Some(Own::Folder(Kind::Tree)) if found.is_dir() => self.tree(path, &shown)?,
                Some(Own::Folder(inner)) if found.is_dir() => {
                    self.look(&path, inner, &format!("{shown}/"))?;
                    self.folders.push(path);
                }
                _ => self.left.push(shown),
            }
        }
        Ok(())
    }

    /// A folder that is vmeter's whole, unless something has come into it. One that a crash
    /// left half copied was never shown to anybody.
    fn tree(&mut self, path: PathBuf, shown: &str) -> io::Result<()> {
        let partial = path.extension().is_some_and(|of| of == "partial");
        let found = if partial { Default::default() } else { strangers(&path)? };
        if found.is_empty() {
            self.trees.push(path);
        } else {
            self.doubted.push((path, format!("{shown} ({})", found.words())));
        }
        Ok(())
    }

    /// Removes it, and at last the folder itself if nothing is left in it.
    ///
    /// # Errors
    /// The first thing that could not be removed, with what came before it gone.
    pub fn carry_out(mut self, folder: &Folder) -> Result<Vec<String>, (PathBuf, io::Error)> {
        let dir = folder.dir().to_owned();
        self.files.retain(|path| !MARKER_AND_LOCK.iter().any(|last| *path == dir.join(last)));
        self.files.sort_by_key(|path| *path != dir.join(SESSION));
        self.left.extend(self.doubted.iter().map(|(_, what)| what.clone()));
        self.clear()?;
        let at = |path: PathBuf| move |error| (path, error);
        let marker = dir.join(super::marker::MARKER);
        gone(fs::remove_file(&marker)).map_err(at(marker))?;
        let lock = dir.join(super::lock::NAME);
        gone(fs::remove_file(&lock)).map_err(at(lock))?;
        // The root of a mount, or a folder with something of somebody else's, stays.
        let _ = fs::remove_dir(&dir);
        Ok(self.left)
    }

    fn clear(&self) -> Result<(), (PathBuf, io::Error)> {
        // The list of a tree goes after it, so that a crash leaves no tree without.
        let is_list = |path: &&PathBuf| path.extension().is_some_and(|of| of == "files");
        for path in self.files.iter().filter(|path| !is_list(path)) {
            gone(fs::remove_file(path)).map_err(|error| (path.clone(), error))?;
        }
        for path in &self.trees {
            gone(fs::remove_dir_all(path)).map_err(|error| (path.clone(), error))?;
        }
        for path in self.files.iter().filter(is_list) {
            gone(fs::remove_file(path)).map_err(|error| (path.clone(), error))?;
        }
        for path in &self.folders {
            match gone(fs::remove_dir(path)) {
                Err(error) if error.kind() != io::ErrorKind::DirectoryNotEmpty => {
                    return Err((path.clone(), error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Makes room where a run is recorded: removes what vmeter left there. What is somebody
/// else's is moved aside.
///
/// # Errors
/// Any error of the file system.
pub fn clear_run(dir: &Path) -> io::Result<()> {
    match dir.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Ok(found) if found.is_dir() => {
            let found = Removal::of_run(dir)?;
            found.clear().map_err(|(_, error)| error)?;
            if found.left.is_empty() {
                return gone(fs::remove_dir(dir));
            }
        }
        Ok(_) => {}
        Err(error) => return Err(error),
    }
    move_aside(dir, "kept")
}

/// Gives a run's folder another name, which no run has: `0003.kept`, `0003.kept-2`.
pub(crate) fn move_aside(dir: &Path, ending: &str) -> io::Result<()> {
    for n in 1..u32::MAX {
        let ending = if n == 1 { ending.to_owned() } else { format!("{ending}-{n}") };
        let aside = dir.with_extension(ending);
        if aside.symlink_metadata().is_err() {
            return fs::rename(dir, aside);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn write(dir: &Path, files: &[&str]) {
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, file).unwrap();
        }
    }

    fn all(dir: &Path) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
            let path = entry.path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if path.is_dir() && !path.is_symlink() {
                found.extend(all(&path).into_iter().map(|inner| format!("{name}/{inner}")));
            } else {
                found.insert(name);
            }
        }
        found
    }

    #[test]
    fn only_what_vmeter_wrote_goes() {
        let hash = "0".repeat(40);
        let own = [
            "session.json".to_owned(),
            "range.json".into(),
            "runs/0000/run.json".into(),
            "runs/0000/console.chunks".into(),
            "runs/0001.partial/mock.jsonl".into(),
            "runs/0001.damaged/run.json".into(),
            format!("builds/{hash}.json"),
            format!("kept/{hash}/any/thing"),
            "checkout/any/thing".into(),
            "shards/1/session.json".into(),
            "shards/1/runs/0000/run.json".into(),
            "log/1.txt".into(),
            ".vmeter-abc.partial".into(),
        ];
        let mine = [
            "notes.txt",
            "runs/exp1/weights.bin",
            "runs/0000/my-notes.txt",
            "builds/release/vmlinux",
            "kept/dear",
            "shards/readme",
            "log/book.txt",
        ];
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("p");
        let held = Folder::make(&dir).unwrap();
        super::super::own_tree(&dir, "checkout").unwrap();
        write(&dir, &own.each_ref().map(String::as_str));
        let trees = [dir.join("checkout"), dir.join("kept").join(&hash)];
        trees.iter().for_each(|tree| super::super::note_tree(tree).unwrap());
        // What has come into them since is not known.
        write(&trees[0], &["thesis", "any/more"]);
        let doubts = |removal: &Removal| removal.doubts().collect::<Vec<_>>().join("; ");
        let removal = Removal::of(&held).unwrap();
        assert_eq!(doubts(&removal), "checkout (any/more, thesis)");
        fs::remove_file(trees[0].join("thesis")).unwrap();
        fs::remove_file(trees[0].join("any/more")).unwrap();
        let removal = Removal::of(&held).unwrap();
        assert_eq!((removal.left(), doubts(&removal)), (&[][..], String::new()));
        removal.carry_out(&held).unwrap();
        assert!(!dir.exists());

        let held = Folder::make(&dir).unwrap();
        write(&dir, &own.each_ref().map(String::as_str));
        write(&dir, &mine);
        std::os::unix::fs::symlink(folder.path(), dir.join("runs/0009")).unwrap();
        let mut removal = Removal::of(&held).unwrap();
        assert_eq!(removal.doubts().count(), 1, "there is no list of it");
        removal.force();
        assert!(removal.left().iter().any(|left| left == "runs/exp1"), "{:?}", removal.left());
        let left = removal.carry_out(&held).unwrap();
        let mut expected: BTreeSet<String> = mine.map(str::to_owned).into();
        // Nothing says that vmeter made this one.
        expected.extend(["checkout/any/thing".to_owned(), "runs/0009".to_owned()]);
        assert_eq!(all(&dir), expected, "{left:?}");
    }

    #[test]
    fn a_recording_of_the_users_stays_in_a_finished_run() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("p");
        let held = Folder::make(&dir).unwrap();
        write(&dir, &["runs/0000/vmm-stderr.txt", "runs/0000/run.json", "runs/0000/trace.dat"]);
        let run = r#"{"sources": [{"files": ["trace.dat"]}]}"#;
        fs::write(dir.join("runs/0000/run.json"), run).unwrap();
        let written = fs::metadata(dir.join("runs/0000/run.json")).unwrap().modified().unwrap();
        let later = written + std::time::Duration::from_secs(5);
        write(&dir, &["runs/0000/console.chunks"]);
        for file in ["console.chunks", "trace.dat"] {
            let file = fs::File::options().append(true).open(dir.join("runs/0000").join(file));
            file.unwrap().set_modified(later).unwrap();
        }
        let left = Removal::of(&held).unwrap().carry_out(&held).unwrap();
        assert_eq!(left, ["runs/0000/console.chunks"]);
        assert_eq!(all(&dir), ["runs/0000/console.chunks".to_owned()].into());
    }

    #[test]
    fn an_unfinished_run_goes_and_what_else_is_there_is_moved_aside() {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("0002.partial");
        clear_run(&dir).unwrap();
        write(&dir, &["console.chunks", "qemu-trace.log"]);
        clear_run(&dir).unwrap();
        assert!(!dir.exists());
        for n in 1..3 {
            write(&dir, &["console.chunks", "mine"]);
            clear_run(&dir).unwrap();
            assert!(!dir.exists());
            assert_eq!(all(folder.path()).len(), n);
        }
        let target = folder.path().join("target");
        write(&target, &["dear"]);
        std::os::unix::fs::symlink(&target, &dir).unwrap();
        clear_run(&dir).unwrap();
        assert!(!dir.is_symlink() && target.join("dear").exists());
    }
}
