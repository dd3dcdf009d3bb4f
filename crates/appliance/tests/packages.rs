//! Kernels in one package and in several, made here by dpkg-deb and fetched from their files.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use vmeter_appliance::kernel::{fetch, FetchOptions, KernelPaths};
use vmeter_appliance::Error;

const VERSION: &str = "9.9.9-test";

/// Makes a package of some files; its path.
fn package(folder: &Path, name: &str, depends: &str, files: &[&str]) -> PathBuf {
    let root = folder.join(format!("{name}.root"));
    let write = |path: &str, text: &str| {
        let path = root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(path, text).expect("written");
    };
    files.iter().for_each(|path| write(path, "x"));
    let control = format!(
        "Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: nobody\nDescription: a test\n{depends}"
    );
    write("DEBIAN/control", &control);
    let deb = folder.join(format!("{name}_1_all.deb"));
    let made = Command::new("dpkg-deb").args(["--build", "-Znone"]).args([&root, &deb]).output();
    let made = made.expect("dpkg-deb is part of Debian");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    deb
}

fn fetched(deb: &Path) -> Result<KernelPaths, Error> {
    let cache = deb.with_extension("cache");
    fetch(
        &FetchOptions { deb: Some(deb.into()), cache: Some(cache), ..Default::default() },
        &mut |_| (),
    )
}

#[test]
fn a_kernel_in_one_package() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return println!("skipped: no dpkg-deb here");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let (image, config) = (format!("boot/vmlinuz-{VERSION}"), format!("boot/config-{VERSION}"));
    let module = format!("lib/modules/{VERSION}/kernel/fs/a.ko");
    let name = format!("linux-image-{VERSION}");
    let kernel =
        fetched(&package(folder.path(), &name, "", &[&image, &config, &module])).expect("fetched");
    assert_eq!(kernel.version, VERSION);
    assert!(kernel.config.is_some() && kernel.modules_dir.join("kernel/fs/a.ko").is_file());
}

#[test]
fn a_kernel_in_three_packages_is_whole_with_all_of_them() {
    if Command::new("dpkg-deb").arg("--version").output().is_err() {
        return println!("skipped: no dpkg-deb here");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let below = format!("usr/lib/modules/{VERSION}");
    let depends = format!(
        "Depends: kmod, linux-base (>= 4), linux-base-{VERSION} (= 1), linux-binary-{VERSION}, \
         linux-modules-{VERSION} (= 1)\n"
    );
    let name = format!("linux-image-{VERSION}");
    let deb = package(folder.path(), &name, &depends, &["usr/share/doc/x"]);
    let part = |family: &str, files: &[&str]| {
        package(folder.path(), &format!("{family}-{VERSION}"), "", files);
    };
    part("linux-base", &[&format!("{below}/config"), &format!("{below}/modules.order")]);
    part("linux-binary", &[&format!("{below}/vmlinuz")]);
    let error = fetched(&deb).expect_err("its modules are missing").to_string();
    assert!(error.contains(&format!("on which it depends: linux-modules-{VERSION}")), "{error}");
    part("linux-modules", &[&format!("{below}/kernel/fs/a.ko")]);
    let kernel = fetched(&deb).expect("fetched");
    assert_eq!(kernel.version, VERSION);
    assert!(kernel.config.is_some() && kernel.modules_dir.join("kernel/fs/a.ko").is_file());
    assert!(kernel.modules_dir.join("modules.order").is_file());
}
