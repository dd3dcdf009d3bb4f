//! A kernel module of the tests' own, built against Debian's headers.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Builds `name`.ko from `source` for the kernel `release`; none, with a line that says
/// why, where the headers cannot be had.
pub fn build(release: &str, name: &str, source: &str, folder: &Path) -> Option<PathBuf> {
    let headers =
        headers(release).map_err(|why| eprintln!("skipped: kernel headers: {why}")).ok()?;
    std::fs::write(folder.join(format!("{name}.c")), source).expect("scratch space");
    std::fs::write(folder.join("Makefile"), format!("obj-m := {name}.o\n")).expect("scratch space");
    let made = Command::new("make")
        .arg("-C")
        .arg(&headers)
        .arg(format!("M={}", folder.display()))
        .arg("modules")
        .output();
    match made {
        Ok(output) if output.status.success() => Some(folder.join(format!("{name}.ko"))),
        other => {
            eprintln!("skipped: the module did not build: {other:?}");
            None
        }
    }
}

/// Debian's headers, unpacked (not installed) once.
fn headers(release: &str) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("headers-{release}"));
    let tree = root.join("tree");
    if tree.join("Makefile").exists() {
        return Ok(tree);
    }
    std::fs::create_dir_all(&root).map_err(|e| e.to_string())?;
    let base = release.trim_end_matches("-cloud-amd64").trim_end_matches("-amd64");
    let kbuild: Vec<&str> = release.splitn(3, '.').take(2).collect();
    let packages = [
        format!("linux-headers-{release}"),
        format!("linux-headers-{base}-common"),
        format!("linux-kbuild-{}", kbuild.join(".")),
    ];
    run(Command::new("apt-get").arg("download").args(&packages).current_dir(&root))?;
    for entry in std::fs::read_dir(&root).map_err(|e| e.to_string())?.flatten() {
        if entry.path().extension().is_some_and(|e| e == "deb") {
            run(Command::new("dpkg").arg("-x").arg(entry.path()).arg(&root))?;
        }
    }
    let usr = root.join("usr");
    let own = usr.join("src").join(format!("linux-headers-{release}"));
    for part in ["scripts", "tools"] {
        let from = usr.join("lib").join(format!("linux-kbuild-{}", kbuild.join("."))).join(part);
        let _ = std::fs::remove_file(own.join(part));
        std::os::unix::fs::symlink(from, own.join(part)).map_err(|e| e.to_string())?;
    }
    // The Makefile includes the common one by its installed path.
    let common = usr.join("src").join(format!("linux-headers-{base}-common"));
    let include = format!("include {}\n", common.join("Makefile").display());
    std::fs::write(own.join("Makefile"), include).map_err(|e| e.to_string())?;
    std::os::unix::fs::symlink(&own, &tree).map_err(|e| e.to_string())?;
    Ok(tree)
}

fn run(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if output.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }
}
