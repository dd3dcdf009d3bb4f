//! The recipes of docs/ADDING.md are true: what they name is there, whatever implements a
//! trait of theirs is registered, and what is registered is named to users and in documents.

use crate::common;

use common::Lab;
use std::fs;
use std::path::{Path, PathBuf};
use vmeter_explain::kind::{Kind, Modifier};
use vmeter_lab::kinds::KINDS;
use vmeter_render::OUTPUTS;
use vmeter_trace::FORMATS;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// What stands in backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let mut found = Vec::new();
    for path in paths {
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|e| e == "rs") {
            found.push(path);
        }
    }
    found
}

/// `text` from the line with `start` on, up to the end of that item.
fn item<'t>(text: &'t str, start: &str) -> &'t str {
    let from = text.find(start).unwrap_or_else(|| panic!("no {start:?}"));
    let rest = &text[from..];
    &rest[..rest.find("\n}\n").or(rest.find("];\n")).unwrap_or(rest.len())]
}

#[test]
fn every_path_and_name_of_a_recipe_is_there() {
    let text = read("docs/ADDING.md");
    let all: String = sources(&root().join("crates")).iter().map(|p| read_all(p)).collect();
    for word in quoted(&text) {
        if let Some((folder, _)) = word.split_once("/NAME") {
            assert!(root().join(folder).is_dir(), "{word}");
        } else if word.starts_with("crates/") || word.starts_with("guest/") {
            assert!(root().join(word).exists(), "{word}");
        } else if word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && word.starts_with(|c: char| c.is_ascii_uppercase())
            && word != "NAME"
        {
            assert!(all.contains(word), "{word}: nothing in crates/ is called so");
        }
    }
}

fn read_all(path: &Path) -> String {
    fs::read_to_string(path).expect("a source file")
}

/// A forgotten line of registration compiles: the type is merely never used.
#[test]
fn whatever_implements_the_trait_of_a_recipe_is_registered() {
    let registries = [
        ("Detector", "crates/explain/src/detect", "crates/explain/src/detect/mod.rs", "DETECTORS:"),
        ("TraceFormat", "crates/trace/src/formats", "crates/trace/src/format.rs", "FORMATS:"),
        ("Output", "crates/render/src/outputs", "crates/render/src/outputs/mod.rs", "OUTPUTS:"),
        ("Recorder", "crates/record/src/sources", "crates/record/src/sources/mod.rs", "fn all()"),
        ("Backend", "crates/machine/src/backends", "crates/machine/src/backend.rs", "fn all()"),
    ];
    for (of, folder, file, registry) in registries {
        let registry = item(&read(file), registry).to_owned();
        let mut found = 0;
        for path in sources(&root().join(folder)) {
            let text = read_all(&path);
            for line in text.lines().filter(|line| line.starts_with("impl")) {
                let Some((_, after)) = line.split_once(&format!(" {of} for ")) else { continue };
                let name: String = after.chars().take_while(|c| c.is_alphanumeric()).collect();
                let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
                let named = registry.contains(&format!("::{name}"))
                    || registry.contains(&format!("{stem}::"));
                // `outputs/terminal/mod.rs` is registered as a constant of its folder.
                let folder = path.parent().and_then(Path::file_name).expect("a folder");
                let by_folder =
                    stem == "mod" && registry.contains(&format!("{}::", folder.to_string_lossy()));
                assert!(named || by_folder, "{}: {name} is not registered", path.display());
                found += 1;
            }
        }
        assert!(found > 3, "{of}: found only {found} in {folder}");
    }
    let rules = item(&read("crates/timeline/src/rules/mod.rs"), "RULES:").to_owned();
    for path in sources(&root().join("crates/timeline/src/rules")) {
        let stem = path.file_stem().expect("a name").to_string_lossy().into_owned();
        let is_family = read_all(&path).contains(": RuleSet =");
        assert!(!is_family || rules.contains(&format!("{stem}::")), "{stem} is not registered");
    }
}

/// What a run that was cut off leaves is known by name: a recording of which the session does
/// not know would be kept aside for somebody else's.
#[test]
fn every_recording_is_known_as_vmeters_own() {
    let mut files = std::collections::BTreeSet::new();
    for folder in ["crates/record/src", "crates/machine/src/backends", "crates/irq/src"] {
        for path in sources(&root().join(folder)) {
            let text = read_all(&path);
            let code = text.split("#[cfg(test)]").next().expect("the code").to_owned();
            for constant in code.split("const ").skip(1) {
                let value = constant.split(';').find(|part| part.contains('=')).unwrap_or_default();
                let words = value.split('"').skip(1).step_by(2);
                files.extend(words.filter(|word| is_recording(word)).map(str::to_owned));
            }
        }
    }
    assert!(files.len() > 15, "{files:?}");
    let folder = tempfile::tempdir().expect("scratch space");
    let partial = folder.path().join("0000.partial");
    fs::create_dir(&partial).expect("scratch space");
    for file in &files {
        fs::write(partial.join(file), "").expect("scratch space");
    }
    vmeter_session::folder::clear_run(&partial).expect("cleared");
    let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").flatten().collect();
    assert!(left.is_empty(), "kept as somebody else's: {left:?}");
}

/// `name.ending`, of a file in a run's folder.
fn is_recording(word: &str) -> bool {
    let endings = ["bin", "chunks", "dat", "events", "json", "jsonl", "log", "qmp", "raw", "txt"];
    let (name, ending) = word.split_once('.').unwrap_or_default();
    let plain = |c: char| c.is_ascii_lowercase() || c == '-';
    !name.is_empty() && name.chars().all(plain) && endings.contains(&ending)
}

/// Every type that implements `Experiment` is a kind that show, report, runs and merge know.
#[test]
fn every_experiment_is_a_kind_and_every_kind_is_a_command() {
    let registry = item(&read("crates/lab/src/kinds.rs"), "KINDS:").to_owned();
    let mut kinds = 0;
    for path in sources(&root().join("crates")) {
        let is_test = path.components().any(|part| part.as_os_str() == "tests");
        let text = read_all(&path);
        let own = text.lines().any(|line| line.starts_with("impl Experiment for "));
        if is_test || !own {
            continue;
        }
        kinds += 1;
        let parts: Vec<String> =
            path.components().map(|part| part.as_os_str().to_string_lossy().into_owned()).collect();
        let at = parts.iter().rposition(|part| part == "crates").expect("below crates");
        let name = if parts[at + 1] == "lab" {
            format!("crate::{}", parts[at + 3].trim_end_matches(".rs"))
        } else {
            format!("vmeter_{}::", parts[at + 1])
        };
        assert!(registry.contains(&name), "{} is not registered in KINDS", path.display());
    }
    assert_eq!(kinds, KINDS.len());
    let lab = Lab::new();
    let (help, interface) = (lab.run(&["--help"]).stdout, read("docs/INTERFACE.md"));
    for kind in KINDS {
        let name = kind.command();
        let command = name.split(' ').next().expect("a word");
        assert!(help.contains(&format!("  {command} ")), "{name} is no command");
        assert!(interface.contains(&format!("`vmeter {name}")), "{name}: docs/INTERFACE.md");
    }
}

#[test]
fn what_is_registered_is_in_documents_and_help() {
    let lab = Lab::new();
    let explain = read("docs/EXPLAIN.md");
    let kinds = Kind::ALL.iter().map(|kind| kind.name());
    for name in kinds.chain(Modifier::ALL.iter().map(|modifier| modifier.name())) {
        assert!(explain.contains(&format!("| `{name}` |")), "{name}: no row in docs/EXPLAIN.md");
    }
    let traces = read("docs/TRACES.md");
    for format in FORMATS {
        let first = format.name().split(' ').next().expect("a name");
        assert!(traces.contains(first), "{}: docs/TRACES.md", format.name());
        let target = format.name().replace("QEMU trace log", "qemu_log").replace(['.', ' '], "_");
        let path = format!("fuzz/fuzz_targets/{target}.rs");
        assert!(root().join(&path).is_file(), "{}: no {path}", format.name());
    }
    let help = lab.run(&["boot", "--help"]).stdout;
    for output in OUTPUTS.iter().filter(|output| !output.extensions().is_empty()) {
        let named = help.contains(&format!("--export-{}", output.name()));
        let by_ending = read("README.md").contains(&format!(".{}", output.extensions()[0]));
        assert!(named || by_ending, "{}: neither an option nor in README", output.name());
    }
    for back_end in vmeter_machine::backend::options() {
        assert!(help.contains(back_end), "--vmm {back_end} is not in the help");
    }
}

/// Commands that docs/INTERFACE.md fixes are there, or said not to exist yet.
#[test]
fn the_fixed_surface_is_there_or_said_to_be_missing() {
    let lab = Lab::new();
    let interface = read("docs/INTERFACE.md");
    let missing = interface.split_once("does not exist yet").map_or("", |(head, _)| head);
    let help = lab.run(&["--help"]).stdout;
    let table = interface.split("## Commands").nth(1).expect("the table");
    for row in table.lines().filter(|line| line.starts_with("| `vmeter ")) {
        let command =
            row.trim_start_matches("| `vmeter ").split([' ', '`']).next().expect("a word");
        let there = help.contains(&format!("  {command} "));
        let said = quoted(missing).any(|word| word.trim_start_matches("vmeter ") == command);
        assert!(there != said, "{command}: in the help: {there}, said to be missing: {said}");
    }
}

/// docs/VIEWS.md says of every name what reports say of it.
#[test]
fn the_names_of_spans_are_documented() {
    let text = read("docs/VIEWS.md");
    for (name, meaning) in vmeter_timeline::names::MEANINGS {
        let row = format!("| `{name}` | {meaning} |");
        assert!(text.lines().any(|line| line == row), "docs/VIEWS.md lacks {row}");
    }
    let rows = text.split("## Names of spans").nth(1).expect("a section");
    let rows = rows.lines().take_while(|line| !line.starts_with("## "));
    let rows = rows.filter(|line| line.starts_with("| `")).count();
    assert_eq!(rows, vmeter_timeline::names::MEANINGS.len(), "a name that no report has");
}
