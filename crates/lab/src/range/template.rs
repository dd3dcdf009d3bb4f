//! `{worktree}` in a machine's texts: which files of a commit are measured.
//!
//! Only what the machine names is kept of a commit, so that every commit that was built
//! can be measured again in any order without building it again.

use anyhow::Result;
use serde_json::Value;
use std::path::Path;
use vmeter_model::MachineSpec;
use vmeter_session::failure::usage;

/// What stands for the checkout.
pub const PLACEHOLDER: &str = "{worktree}";

/// Paths below the checkout that a machine names, each once; `.` for the whole of it.
///
/// # Errors
/// Class usage: none, or one that leaves the checkout.
pub fn references(spec: &MachineSpec) -> Result<Vec<String>> {
    let mut found: Vec<String> = Vec::new();
    each_text(&mut serde_json::to_value(spec)?, &mut |text| {
        for part in text.split(PLACEHOLDER).skip(1) {
            let path = of_rest(part);
            if !found.contains(&path) {
                found.push(path);
            }
        }
    });
    if found.is_empty() {
        return Err(usage(format!(
            "the measured command uses no file of the commit. Name a file that --build makes, with \
                {PLACEHOLDER} in its path: --kernel {PLACEHOLDER}/arch/x86/boot/bzImage or --vmm \
                {PLACEHOLDER}/build/qemu-system-x86_64, for example. Or give a command with --run"
        )));
    }
    if let Some(outside) = found.iter().find(|p| p.split('/').any(|part| part == "..")) {
        return Err(usage(format!("{PLACEHOLDER}/{outside} is outside of the checkout")));
    }
    found.sort();
    if found.iter().any(|p| p == ".") {
        return Ok(vec![".".to_owned()]);
    }
    Ok(found)
}

/// The path that follows a placeholder, up to what cannot be part of one in a command line.
fn of_rest(rest: &str) -> String {
    let path = match rest.strip_prefix('/') {
        Some(path) => path,
        None => return ".".to_owned(),
    };
    let end = path.find(|c: char| c.is_whitespace() || ",;'\"|&()<>$`".contains(c));
    let path = path.get(..end.unwrap_or(path.len())).unwrap_or_default().trim_end_matches('/');
    if path.is_empty() {
        ".".to_owned()
    } else {
        path.to_owned()
    }
}

/// The machine with `dir` in the place of the checkout.
///
/// # Errors
/// None that a specification can cause.
pub fn filled(spec: &MachineSpec, dir: &Path) -> Result<MachineSpec> {
    let dir = dir.to_string_lossy();
    let mut value = serde_json::to_value(spec)?;
    each_text(&mut value, &mut |text| *text = text.replace(PLACEHOLDER, &dir));
    Ok(serde_json::from_value(value)?)
}

/// The machine that `--run CMD` means: sh, in the checkout where it names no file of it.
pub fn command(run: &str, spec: MachineSpec) -> MachineSpec {
    let words = match run.contains(PLACEHOLDER) {
        true => vec!["sh".to_owned(), "-c".into(), run.to_owned()],
        // As an argument, so that no folder's name is read by the shell.
        false => vec!["sh".into(), "-c".into(), format!("cd \"$0\" && {run}"), PLACEHOLDER.into()],
    };
    // It is timed as a command is, and no VMM is looked for in it.
    MachineSpec { command: words, no_inject: true, ..spec }
}

fn each_text(value: &mut Value, action: &mut dyn FnMut(&mut String)) {
    match value {
        Value::String(text) => action(text),
        Value::Array(items) => items.iter_mut().for_each(|item| each_text(item, action)),
        Value::Object(fields) => fields.values_mut().for_each(|field| each_text(field, action)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_a_machine_names() {
        let spec = MachineSpec {
            kernel: Some("{worktree}/arch/x86/boot/bzImage".into()),
            command: vec!["-drive".into(), "file={worktree}/disk.img,format=raw".into()],
            append: vec!["init=/x".into()],
            ..MachineSpec::default()
        };
        assert_eq!(references(&spec).unwrap(), ["arch/x86/boot/bzImage", "disk.img"]);
        let there = filled(&spec, Path::new("/kept/1")).unwrap();
        assert_eq!(there.kernel.as_deref(), Some(Path::new("/kept/1/arch/x86/boot/bzImage")));
        assert_eq!(there.command[1], "file=/kept/1/disk.img,format=raw");
        assert!(references(&MachineSpec::default()).unwrap_err().to_string().contains("--run"));
        let outside =
            MachineSpec { vmm: Some("{worktree}/../sh".into()), ..MachineSpec::default() };
        assert!(references(&outside).is_err());
    }

    #[test]
    fn commands_run_in_the_checkout_or_name_files_of_it() {
        let whole = command("./bench.sh --fast", MachineSpec::default());
        assert_eq!(references(&whole).unwrap(), ["."]);
        let there = filled(&whole, Path::new("/it's kept")).unwrap();
        assert_eq!(there.command[2..], ["cd \"$0\" && ./bench.sh --fast", "/it's kept"]);
        let file = command("{worktree}/bin/vmm --boot;true", MachineSpec::default());
        assert_eq!(references(&file).unwrap(), ["bin/vmm"]);
    }

    proptest! {
        #[test]
        fn never_panics(text in ".{0,60}") {
            let spec = MachineSpec {
                vmm: Some(format!("{{worktree}}{text}")),
                ..MachineSpec::default()
            };
            let _ = references(&spec);
            let vmm = filled(&spec, Path::new("/k")).unwrap().vmm.unwrap();
            prop_assert!(vmm.starts_with("/k"));
        }
    }
}
