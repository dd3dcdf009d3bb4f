//! From what is asked for to a `.config` that the sources took.

use super::drop::{self, Change, Plan, Selectors};
use super::lines::{setting, Line, DEBIAN, MINIMAL};
use super::make::MAKE;
use super::{BuildOptions, Config, Cut};
use crate::error::{At, Error, Result};
use crate::kernel;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Where Kconfig's own targets (`allnoconfig`) take values from (Linux
/// `Documentation/kbuild/kconfig.rst`).
const ALLCONFIG: &str = "KCONFIG_ALLCONFIG";

/// The configuration as Kconfig has completed it, without a release of its own, and what it
/// changes by measured initcalls. `work` is an empty folder.
pub(super) fn make(options: &BuildOptions, source: &Path, work: &Path) -> Result<(String, Cut)> {
    let (text, cut) = match options.config {
        Config::Minimal => (minimal(source, work)?, Cut::default()),
        Config::Debian => (debian(options, source, work, &[])?, Cut::default()),
        Config::Custom => custom(options, source, work)?,
    };
    let whole: Vec<&str> =
        text.lines().filter(|line| !line.starts_with("CONFIG_LOCALVERSION=")).collect();
    Ok((whole.join("\n") + "\n", cut))
}

/// The same with the release's last part.
pub(super) fn with_release(text: &str, config: Config, key: &str) -> String {
    format!("{text}CONFIG_LOCALVERSION=\"-vmeter-{config}-{key}\"\n")
}

fn minimal(source: &Path, work: &Path) -> Result<String> {
    let fragment = work.join("fragment");
    let text: String = MINIMAL.iter().map(written).collect();
    fs::write(&fragment, text).at(&fragment)?;
    run(source, work, Some(&fragment), "allnoconfig")?;
    let text = read(work)?;
    check(&text, MINIMAL.iter().map(|line| (line.option, line.value)), source)?;
    Ok(text)
}

/// Debian's configuration with these changes.
fn debian(
    options: &BuildOptions,
    source: &Path,
    work: &Path,
    changes: &[Change],
) -> Result<String> {
    let kernel = kernel::list_in(&options.cache).pop().ok_or(Error::NoModules)?;
    let base = kernel.config.ok_or(Error::Malformed {
        path: kernel.vmlinuz,
        problem: "expected the kernel's configuration file in the folder of this kernel image; a \
            Debian package puts it there"
            .into(),
    })?;
    let mut text = fs::read_to_string(&base).at(&base)?;
    // The last of several lines wins.
    text.extend(DEBIAN.iter().map(written));
    text.extend(changes.iter().map(Change::line));
    let file = work.join(".config");
    fs::write(&file, text).at(&file)?;
    run(source, work, None, "olddefconfig")?;
    let text = read(work)?;
    let asked = DEBIAN.iter().filter(|line| line.value == "y");
    check(&text, asked.map(|line| (line.option, line.value)), source)?;
    Ok(text)
}

/// How often what Kconfig kept is tried again with what selects it.
const ROUNDS: usize = 8;

fn custom(options: &BuildOptions, source: &Path, work: &Path) -> Result<(String, Cut)> {
    let before = debian(options, source, work, &[])?;
    let (initcalls, kept) = ((&options.initcalls[..], options.long_s), &options.kept);
    let mut plan = Plan::new(drop::verdicts(source, &values(&before), initcalls, kept));
    let selectors = Selectors::of(source);
    let mut changes = plan.changes();
    let mut text = debian(options, source, work, &changes)?;
    for _ in 0..ROUNDS {
        let tries = plan.widen(&values(&text), &selectors, kept);
        // With what selects an option, and without what Kconfig did not take.
        let next = plan.changes();
        if next != changes {
            text = debian(options, source, work, &next)?;
            changes = next;
        }
        if !tries {
            break;
        }
    }
    Ok((text, Cut { changes, verdicts: plan.verdicts }))
}

/// Options that are on, with their values.
pub(super) fn values(text: &str) -> BTreeMap<&str, &str> {
    text.lines().filter_map(|line| line.strip_prefix("CONFIG_")?.split_once('=')).collect()
}

fn written(line: &Line) -> String {
    setting(line.option, line.value)
}

fn run(source: &Path, work: &Path, fragment: Option<&Path>, target: &str) -> Result<()> {
    let mut command = MAKE.command();
    command.arg("-C").arg(source).arg(format!("O={}", work.display())).arg(target);
    if let Some(fragment) = fragment {
        command.env(ALLCONFIG, fragment);
    }
    MAKE.finish(command).map(std::mem::drop)
}

fn read(work: &Path) -> Result<String> {
    let file = work.join(".config");
    fs::read_to_string(&file).at(&file)
}

/// Refuses a configuration in which Kconfig did not take what was asked for.
fn check<'a>(
    text: &str,
    asked: impl Iterator<Item = (&'a str, &'a str)>,
    source: &Path,
) -> Result<()> {
    let values = values(text);
    let refused: Vec<String> = asked
        .filter(|(option, value)| values.get(option) != Some(value))
        .map(|(option, value)| {
            let is = values.get(option).copied().unwrap_or("not set");
            format!("CONFIG_{option} (expected {value}, found {is})")
        })
        .collect();
    if refused.is_empty() {
        return Ok(());
    }
    Err(Error::Malformed {
        path: source.into(),
        problem: format!(
            "these kernel sources reject {}: their Kconfig files have other dependencies; expected \
                sources of Linux 6.1 to 6.12",
            refused.join(", ")
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_kconfig_did_not_take_is_named() {
        let text = "CONFIG_A=y\n# CONFIG_B is not set\nCONFIG_C=\"x\"\n";
        let at = Path::new("/src");
        assert!(check(text, [("A", "y"), ("C", "\"x\"")].into_iter(), at).is_ok());
        let error = check(text, [("A", "y"), ("B", "y")].into_iter(), at).expect_err("B");
        assert!(error.to_string().contains("CONFIG_B (expected y, found not set)"), "{error}");
    }

    #[test]
    fn every_line_has_a_reason_and_is_there_once() {
        for lines in [MINIMAL, DEBIAN] {
            let mut names: Vec<&str> = lines.iter().map(|line| line.option).collect();
            assert!(lines.iter().all(|line| !line.why.is_empty()));
            names.sort_unstable();
            let all = names.len();
            names.dedup();
            assert_eq!(names.len(), all);
        }
        assert_eq!(written(&DEBIAN[3]), "# CONFIG_LOCALVERSION_AUTO is not set\n");
    }
}
