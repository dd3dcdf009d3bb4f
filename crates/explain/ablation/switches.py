#!/usr/bin/env python3
"""Which rules of vmeter-explain carry a case: each one off alone, and all that can be off together.

    crates/explain/ablation/switches.py FOLDER...          # each switch alone: a table
    crates/explain/ablation/switches.py --greedy FOLDER...  # then: what can be off at once

FOLDER holds traces and truth.json, as fixtures/explain does. A copy of the workspace is made under
target/ablation, and each function that decides something, each constant and each list of names in
the copy gets a switch. A switch that loses no case and no twin carries nothing on these sets.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[3]
COPY = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "ablation"
SRC = COPY / "crates/explain/src"
# What reads, prints and describes is no rule.
SKIP = ("lib.rs", "result.rs", "report", "merge", "moment", "read", "say")
table = []


def switch(kind, file, name, lines=1):
    """A new switch's number."""
    row = {"kind": kind, "file": str(file.relative_to(SRC)), "name": name, "lines": lines}
    table.append(row)
    return len(table) - 1


def copy():
    """Copies the sources of the workspace."""
    COPY.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(COPY / "crates", ignore_errors=True)
    for name in ("Cargo.toml", "Cargo.lock", "crates", "guest"):
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, COPY / name, ignore=shutil.ignore_patterns("target"), dirs_exist_ok=True)
        else:
            shutil.copy(source, COPY / name)


def functions(file):
    """A switch at the head of each function that returns nothing, an Option, a bool, a Vec or a map."""
    lines, out, at, tests = file.read_text().split("\n"), [], 0, False
    while at < len(lines):
        line = lines[at]
        tests = tests or line.startswith("#[cfg(test)]")
        found = re.match(r"^(\s*)(?:pub(?:\([^)]*\))? )?fn (\w+)", line)
        if not found or tests:
            out.append(line)
            at += 1
            continue
        indent, name = found[1], found[2]
        begin = at
        while not lines[at].rstrip().endswith(("{", ";", "}")):
            at += 1
        head = " ".join(part.strip() for part in lines[begin : at + 1])
        out += lines[begin : at + 1]
        at += 1
        if not head.endswith("{"):
            continue
        end = at
        while lines[end] != indent + "}":
            end += 1
        returns = re.search(r".*-> (.+?)(?: where .*)? \{$", head)
        returns = returns[1] if returns and returns[1].count(")") <= returns[1].count("(") else None
        values = []
        for begins, value in (("Option<", " None"), ("bool", " false"), ("bool", " true"), ("Vec<", " Vec::new()"),
                              ("BTreeMap<", " BTreeMap::new()"), ("BTreeSet<", " BTreeSet::new()")):
            if returns and returns.startswith(begins):
                values.append(value)
        if not returns and str(file.relative_to(SRC)).startswith(("detect", "rank")):
            values.append("")
        for value in values:
            number = switch("fn" + value, file, name, end - at + 2)
            out.append(f"{indent}    if crate::ablate::off({number}) {{ return{value}; }}")
    file.write_text("\n".join(out))


def names(file, text):
    """A switch for each list of names, emptied, and each number, doubled and halved."""
    for found in list(re.finditer(r"^\s*(?:pub(?:\([^)]*\))? )?const (\w+): (f64|u64) = .+;", text, re.M)):
        name, kind = found[1], found[2]
        number = switch("doubled", file, name)
        switch("halved", file, name)
        lines = []
        for line in text.split("\n"):
            passed = re.match(r"\s*(//|(pub(\([^)]*\))? )?(const|static|use) )", line)
            use = rf"(?<![\w:\[`]){name}(?![\w`\]])"
            lines.append(line if passed else re.sub(use, f"crate::ablate::{kind}({number}, {name})", line))
        text = "\n".join(lines)
    for found in list(re.finditer(r"^\s*(?:pub(?:\([^)]*\))? )?const (\w+): (?:\[&str; \d+\]|&\[&str\]) =", text, re.M)):
        number = switch("list", file, found[1])
        text = re.sub(rf"(?<![\w:]){found[1]}\.(contains|iter)\(", rf"crate::ablate::list({number}, &{found[1]}).\1(", text)
    return text


RUNTIME = """//! Switches.
#![allow(missing_docs)]
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
pub const SWITCHES: usize = %d;
static OFF: [AtomicBool; SWITCHES] = [const { AtomicBool::new(false) }; SWITCHES];
static HITS: [AtomicU32; SWITCHES] = [const { AtomicU32::new(0) }; SWITCHES];
pub fn off(id: usize) -> bool { HITS[id].fetch_add(1, Relaxed); OFF[id].load(Relaxed) }
pub fn f64(id: usize, x: f64) -> f64 { if off(id) { x * 2.0 } else if off(id + 1) { x / 2.0 } else { x } }
pub fn u64(id: usize, x: u64) -> u64 { if off(id) { x * 2 } else if off(id + 1) { x / 2 } else { x } }
pub fn list<'a, 'b>(id: usize, all: &'a [&'b str]) -> &'a [&'b str] { if off(id) { &[] } else { all } }
pub fn hits(id: usize) -> u32 { HITS[id].swap(0, Relaxed) }
pub fn set(ids: &[usize]) { for (at, flag) in OFF.iter().enumerate() { flag.store(ids.contains(&at), Relaxed); } }
"""
LOADED = """
/// A trace read once, to be told many times.
pub struct Loaded(Known);
/// Reads it.
pub fn load(files: &[PathBuf], options: &Options) -> Result<Loaded, ExplainError> { Ok(Loaded(read(files, options)?)) }
impl Loaded {
    /// Tells it.
    pub fn told(&self, options: &Options) -> ExplainResult { let view = self.0.view(options); told(&self.0, &view, diagnose::findings(&view)) }
}
"""


def instrument():
    """Puts the switches into the copy."""
    files = [f for f in sorted(SRC.rglob("*.rs")) if not str(f.relative_to(SRC)).startswith(SKIP)]
    for file in files:
        functions(file)
    for file in files:
        file.write_text(names(file, file.read_text()))
    detectors = SRC / "detect/mod.rs"
    text = detectors.read_text()
    every = re.search(r"DETECTORS: &\[.*?\] = &\[(.*?)\];", text, re.S)
    if every:
        first = len(table)
        for name in filter(None, (part.strip().lstrip("&") for part in every[1].split(","))):
            switch("detector", detectors, name)
        used = SRC / "diagnose/mod.rs"
        kept = f"DETECTORS.iter().enumerate().filter(|(at, _)| !crate::ablate::off({first} + at)).map(|(_, d)| d)"
        used.write_text(used.read_text().replace("DETECTORS.iter()", kept))
    (SRC / "ablate.rs").write_text(RUNTIME % len(table))
    lib = SRC / "lib.rs"
    lib.write_text(lib.read_text().replace("mod confirm;", "pub mod ablate;\nmod confirm;") + LOADED)
    here = COPY / "crates/explain"
    shutil.copy(here / "ablation/ablate.rs", here / "examples/ablate.rs")
    (COPY / "switches.json").write_text(json.dumps(table))


def build():
    """Builds the copy; gives the program."""
    environment = dict(os.environ, CARGO_TARGET_DIR=str(COPY / "target"), CARGO_PROFILE_DEV_OPT_LEVEL="2")
    command = ["cargo", "build", "-q", "-p", "vmeter-explain", "--example", "ablate", "--profile", "dev"]
    subprocess.run(command, cwd=COPY, env=environment, check=True)
    return COPY / "target/debug/examples/ablate"


def loses(row):
    """True if a row is worse than the base in any way."""
    return row.get("panics") or row["strict_lost"] or row["mild_lost"] or row["alarms"]


def greedy(program, folders):
    """What can be off at once: each switch in turn, kept off if nothing is lost."""
    command = [str(program), "sets", *folders]
    run = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    run.stdout.readline()

    def ask(off):
        run.stdin.write(",".join(map(str, off)) + "\n")
        run.stdin.flush()
        return json.loads(run.stdout.readline())

    off, rules = [], [at for at, row in enumerate(table) if row["kind"] not in ("doubled", "halved")]
    for number in sorted(rules, key=lambda at: (table[at]["kind"] != "detector", -table[at]["lines"])):
        if not loses(ask(off + [number])):
            off.append(number)
    print("off together:", *(f"{table[at]['file']}:{table[at]['name']}" for at in off), sep="\n  ")
    print("scores:", ask(off)["scores"], "lines:", sum(table[at]["lines"] for at in off))


def main():
    folders = [str(pathlib.Path(a).resolve()) for a in sys.argv[1:] if not a.startswith("-")]
    if not folders:
        sys.exit(__doc__)
    copy()
    instrument()
    program = build()
    out = subprocess.run([program, "each", *folders], stdout=subprocess.PIPE, text=True, check=True).stdout
    rows = [json.loads(line) for line in out.splitlines()]
    print("base: strict, mild, alarms, cases of each folder:", rows[0]["scores"])
    for row in rows[1:]:
        known = table[row["off"][0]]
        what = "panics" if row.get("panics") else " ".join(
            f"{key} {','.join(row[key])}" for key in ("strict_lost", "mild_lost", "strict_won", "alarms", "fewer_alarms") if row[key])
        if what or "-v" in sys.argv:
            print(f"{known['file']}:{known['name']} ({known['kind']}, {known['lines']} lines): {what}")
    carry = sum(1 for row in rows[1:] if loses(row))
    print(f"{len(table)} switches, {carry} lose a case or alarm a twin")
    if "--greedy" in sys.argv:
        greedy(program, folders)


main()
