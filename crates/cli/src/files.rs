//! No output of a command is a file that the command reads, or one of a saved session's: checked
//! here for all commands, before any of them runs.

use anyhow::Result;
use clap::{Arg, ArgMatches, Command};
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use vmeter_session::failure::usage;
use vmeter_session::folder::check_output;

/// Options that name a file to write, besides `--export-…`.
const OUTPUTS: [&str; 3] = ["output_file", "out", "prefetch_list"];

/// A value of the command line.
struct Value {
    /// The name of the option, e.g. `--mtree`, or of the positional argument, e.g. `FILE`.
    option: String,
    text: OsString,
    is_output: bool,
    /// True for a word after `--`, which is part of the command that vmeter starts.
    is_foreign: bool,
}

impl Value {
    /// The regular files that the value names. The whole value can be a path, or a part of it, e.g.
    /// in `file=disk.img,format=raw`.
    fn files(&self) -> Vec<(PathBuf, Metadata)> {
        if self.text == "-" {
            let stdin = PathBuf::from("/dev/stdin");
            return regular(&stdin).map(|found| (stdin, found)).into_iter().collect();
        }
        let part = |byte: &u8| matches!(byte, b',' | b'=') || byte.is_ascii_whitespace();
        let parts = self.text.as_bytes().split(part).map(|p| OsString::from_vec(p.to_vec()));
        let named = std::iter::once(self.text.clone()).chain(parts).map(PathBuf::from);
        named.filter_map(|path| regular(&path).map(|found| (path, found))).collect()
    }
}

fn regular(path: &Path) -> Option<Metadata> {
    path.metadata().ok().filter(Metadata::is_file)
}

fn is_same(a: &Metadata, b: &Metadata) -> bool {
    (a.dev(), a.ino()) == (b.dev(), b.ino())
}

/// Refuses an output file that is also an input, another output, or a file of a saved session.
///
/// # Errors
/// A usage error.
pub fn check(command: &Command, matches: &ArgMatches) -> Result<()> {
    let values = values(command, matches);
    let (outputs, inputs): (Vec<_>, Vec<_>) = values.into_iter().partition(|v| v.is_output);
    let inputs: Vec<_> =
        inputs.iter().flat_map(|v| v.files().into_iter().map(move |f| (v, f))).collect();
    for (n, output) in outputs.iter().enumerate().filter(|(_, output)| output.text != "-") {
        let path = Path::new(&output.text);
        check_output(path)?;
        let (shown, option) = (path.display(), &output.option);
        if let Some(other) =
            outputs[..n].iter().find(|other| place(&other.text) == place(&output.text))
        {
            let other = &other.option;
            return Err(usage(format!(
                "{other} and {option} both write {shown}: choose another file"
            )));
        }
        let Some(found) = regular(path) else { continue };
        if let Some((input, _)) = inputs.iter().find(|(_, (_, file))| is_same(file, &found)) {
            let input = &input.option;
            return Err(usage(format!(
                "{option} {shown} would overwrite {input}, which this command reads: choose \
                    another file"
            )));
        }
    }
    let stdout =
        || File::from(std::io::stdout().as_fd().try_clone_to_owned().ok()?).metadata().ok();
    let Some(stdout) = stdout().filter(Metadata::is_file) else { return Ok(()) };
    let read = inputs.iter().find(|(value, (path, file))| {
        !value.is_foreign && *path == value.text && is_same(file, &stdout)
    });
    match read {
        Some((_, (path, _))) => Err(usage(format!(
            "standard output is redirected to {}, which this command reads: redirect it to \
                another file",
            path.display()
        ))),
        None => Ok(()),
    }
}

/// Where a file is, or would be.
fn place(path: &OsString) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    let in_folder = || Some(path.parent()?.canonicalize().ok()?.join(path.file_name()?));
    path.canonicalize().ok().or_else(in_folder).unwrap_or(path)
}

/// All values that the user typed, for the command and its subcommand.
fn values(mut command: &Command, mut matches: &ArgMatches) -> Vec<Value> {
    let mut values = Vec::new();
    let mut seen = Vec::new();
    loop {
        for arg in command.get_arguments() {
            // A global option is there on each level.
            if seen.contains(arg.get_id()) {
                continue;
            }
            let Ok(Some(raw)) = matches.try_get_raw(arg.get_id().as_str()) else { continue };
            seen.push(arg.get_id().clone());
            values.extend(raw.map(|text| Value {
                option: option(arg),
                text: text.to_owned(),
                is_output: is_output(arg),
                is_foreign: arg.is_last_set(),
            }));
        }
        let Some((name, sub)) = matches.subcommand() else { return values };
        let Some(found) = command.find_subcommand(name) else { return values };
        (command, matches) = (found, sub);
    }
}

fn is_output(arg: &Arg) -> bool {
    let id = arg.get_id().as_str();
    id.starts_with("export-") || OUTPUTS.contains(&id)
}

fn option(arg: &Arg) -> String {
    match arg.get_long() {
        Some(long) => format!("--{long}"),
        None => arg
            .get_value_names()
            .map_or_else(|| arg.get_id().to_string(), |names| names[0].to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Cli;
    use clap::CommandFactory;

    /// An option for a file to write is known for one, so that it is checked.
    #[test]
    fn every_output_is_known() {
        let mut cli = Cli::command();
        cli.build();
        let mut outputs = Vec::new();
        let mut commands: Vec<&Command> = vec![&cli];
        while let Some(command) = commands.pop() {
            commands.extend(command.get_subcommands());
            for arg in command.get_arguments() {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                let writes = help.starts_with("File to write") || help.starts_with("Write ");
                assert_eq!(is_output(arg), writes, "{} {}", command.get_name(), option(arg));
                outputs.extend(writes.then(|| format!("{} {}", command.get_name(), arg.get_id())));
            }
        }
        for known in [
            "record output_file",
            "convert output_file",
            "report output_file",
            "build out",
            "restore prefetch_list",
        ] {
            assert!(outputs.iter().any(|output| output == known), "{outputs:?}");
        }
    }
}
