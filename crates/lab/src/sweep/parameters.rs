//! What a sweep varies: `-L name=a,b,c`, `-P name=0..4[:step]`, crossed.
//!
//! A name is an option of the machine or a `{name}` placeholder anywhere in the text of
//! one: in a command line of the user's own, in `--append`, in `--prepare`, in a path.

use anyhow::Result;
use std::collections::BTreeSet;
use vmeter_model::sweep::Settings;
use vmeter_model::MachineSpec;
use vmeter_session::failure::usage;

/// More points than this are a mistake in a range.
const MAX_POINTS: usize = 10_000;
/// Options of the machine that can be varied by name.
const OPTIONS: [&str; 15] = [
    "vmm",
    "accel",
    "machine",
    "firmware",
    "kernel",
    "symbols",
    "initrd",
    "append",
    "smp",
    "memory",
    "pcie-root-ports",
    "init",
    "root",
    "until",
    "timeout",
];

/// A parameter and its values, in the order of the sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// Option or placeholder.
    pub name: String,
    /// Values, each once.
    pub values: Vec<String>,
}

/// One machine of a sweep.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// Unique, e.g. `pcie-root-ports=3,smp=2`.
    pub label: String,
    /// Each parameter's value.
    pub parameters: Settings,
    /// The machine.
    pub spec: MachineSpec,
}

impl Parameter {
    /// Reads `name=a,b,c`; `\,` is a comma inside a value.
    ///
    /// # Errors
    /// What is wrong, with an example.
    pub fn list(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            usage(format!("-L {text}: {what}; expected NAME=VALUE,VALUE,… such as smp=1,2,4"))
        };
        let (name, list) = named(text).ok_or_else(|| wrong("no name and values"))?;
        let mut values = vec![String::new()];
        let mut rest = list.chars();
        while let Some(c) = rest.next() {
            match (c, values.last_mut()) {
                ('\\', Some(value)) if rest.as_str().starts_with(',') => {
                    value.extend(rest.next());
                }
                (',', _) => values.push(String::new()),
                (c, Some(value)) => value.push(c),
                (_, None) => {}
            }
        }
        if let Some(twice) = repeated(&values) {
            return Err(wrong(&format!("the value {twice:?} is there twice")));
        }
        Ok(Parameter { name: name.to_owned(), values })
    }

    /// Reads `name=first..last` or `name=first..last:step`; `last` is included. Values keep
    /// the decimals of the range: `0..1:0.25` is 0.00, 0.25, ….
    ///
    /// # Errors
    /// What is wrong, with an example.
    pub fn range(text: &str) -> Result<Self> {
        let wrong = |what: &str| {
            usage(format!(
                "-P {text}: {what}; expected NAME=FIRST..LAST[:STEP] such as pcie-root-ports=0..6 or memory=256..1024:256"
            ))
        };
        let (name, range) = named(text).ok_or_else(|| wrong("no name and range"))?;
        let (first, rest) = range.split_once("..").ok_or_else(|| wrong("no range"))?;
        let (last, step) = rest.split_once(':').unwrap_or((rest, "1"));
        let decimals = [first, last, step].into_iter().map(decimals).max().unwrap_or(0);
        let scaled = |text: &str| {
            scaled(text, decimals).ok_or_else(|| wrong(&format!("{text:?} is no number")))
        };
        let (first, last, step) = (scaled(first)?, scaled(last)?, scaled(step)?);
        if step <= 0 {
            return Err(wrong("the step must be above 0"));
        }
        if last < first {
            return Err(wrong("the last value is below the first"));
        }
        // Differences of scaled i64 fit i128.
        let steps = (i128::from(last) - i128::from(first)) / i128::from(step);
        if steps >= MAX_POINTS as i128 {
            return Err(wrong(&format!("more than {MAX_POINTS} values")));
        }
        let value = |n: i128| unscaled(i128::from(first) + n * i128::from(step), decimals);
        let values = (0..=steps).map(value).collect();
        Ok(Parameter { name: name.to_owned(), values })
    }
}

fn named(text: &str) -> Option<(&str, &str)> {
    let (name, values) = text.split_once('=')?;
    let name = name.trim();
    (!name.is_empty() && !name.contains(['{', '}', ' '])).then_some((name, values))
}

fn repeated(values: &[String]) -> Option<&String> {
    let mut seen = BTreeSet::new();
    values.iter().find(|value| !seen.insert(*value))
}

fn decimals(number: &str) -> usize {
    number.split_once('.').map_or(0, |(_, fraction)| fraction.len())
}

/// A decimal number times 10^decimals, exactly.
fn scaled(text: &str, decimals: usize) -> Option<i64> {
    let text = text.trim();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
    let unsigned = whole.strip_prefix('-').unwrap_or(whole);
    if unsigned.is_empty() || !digits(unsigned) || !digits(fraction) || decimals > 12 {
        return None;
    }
    format!("{whole}{fraction:0<decimals$}").parse().ok()
}

fn unscaled(value: i128, decimals: usize) -> String {
    let sign = if value < 0 { "-" } else { "" };
    let digits = format!("{:0>width$}", value.unsigned_abs(), width = decimals + 1);
    let (whole, fraction) = digits.split_at(digits.len() - decimals);
    if fraction.is_empty() {
        format!("{sign}{whole}")
    } else {
        format!("{sign}{whole}.{fraction}")
    }
}

/// Every combination of the parameters' values, applied to `base`; the first parameter
/// varies slowest.
///
/// # Errors
/// A parameter that is named twice, that nothing in the machine uses, or a value that its
/// option does not take.
pub fn points(
    base: &MachineSpec,
    prepare: Option<&str>,
    parameters: &[Parameter],
) -> Result<Vec<Point>> {
    let names: Vec<String> = parameters.iter().map(|p| p.name.clone()).collect();
    if let Some(twice) = repeated(&names) {
        return Err(usage(format!("the parameter {twice:?} is varied twice")));
    }
    let count = parameters.iter().try_fold(1usize, |n, p| n.checked_mul(p.values.len()));
    if count.is_none_or(|n| n > MAX_POINTS) {
        return Err(usage(format!("more than {MAX_POINTS} points: vary fewer values")));
    }
    let mut all: Vec<Settings> = vec![Vec::new()];
    for parameter in parameters {
        let with = |settings: &Settings, value: &String| {
            let mut settings = settings.clone();
            settings.push((parameter.name.clone(), value.clone()));
            settings
        };
        all = all
            .iter()
            .flat_map(|settings| parameter.values.iter().map(move |v| with(settings, v)))
            .collect();
    }
    all.into_iter().map(|settings| point(base, prepare, settings)).collect()
}

fn point(base: &MachineSpec, prepare: Option<&str>, parameters: Settings) -> Result<Point> {
    let mut spec = base.clone();
    for (name, value) in &parameters {
        let placed = substituted(&mut spec, name, value)
            | prepare.is_some_and(|text| text.contains(&format!("{{{name}}}")));
        let is_option = OPTIONS.contains(&name.as_str());
        // A command line of the user's own takes no options but these two.
        let counts = spec.command.is_empty() || matches!(name.as_str(), "until" | "timeout");
        if is_option && counts {
            set(&mut spec, name, value)?;
        } else if !placed {
            return Err(unused(name, is_option));
        }
    }
    let label = parameters.iter().map(|(name, value)| format!("{name}={value}"));
    Ok(Point { label: label.collect::<Vec<_>>().join(","), parameters, spec })
}

fn unused(name: &str, is_option: bool) -> anyhow::Error {
    if is_option {
        return usage(format!(
            "parameter {name:?} changes nothing, because vmeter does not change the command line \
                that follows `--`: write {{{name}}} in it where the value belongs"
        ));
    }
    usage(format!(
        "the parameter {name:?} changes nothing: no --append, --prepare or command line after -- \
         contains {{{name}}}, and {name:?} is not a machine option; the machine options are {}",
        OPTIONS.join(", ")
    ))
}

/// Replaces `{name}` wherever the machine has text; true if it was anywhere.
fn substituted(spec: &mut MachineSpec, name: &str, value: &str) -> bool {
    let placeholder = format!("{{{name}}}");
    let mut found = false;
    let mut replace = |text: &mut String| {
        if text.contains(&placeholder) {
            found = true;
            *text = text.replace(&placeholder, value);
        }
    };
    let MachineSpec { vmm, machine, firmware, init, root, until, .. } = spec;
    [vmm, machine, firmware, init, root, until].into_iter().flatten().for_each(&mut replace);
    spec.append.iter_mut().chain(&mut spec.command).chain(&mut spec.vmm_arg).for_each(&mut replace);
    for path in [&mut spec.kernel, &mut spec.symbols, &mut spec.initrd].into_iter().flatten() {
        if let Some(mut text) = path.to_str().map(str::to_owned) {
            replace(&mut text);
            *path = text.into();
        }
    }
    found
}

/// `text` with the parameters of a point in the place of their placeholders.
pub fn filled(text: &str, parameters: &Settings) -> String {
    parameters
        .iter()
        .fold(text.to_owned(), |text, (name, value)| text.replace(&format!("{{{name}}}"), value))
}

fn set(spec: &mut MachineSpec, name: &str, value: &str) -> Result<()> {
    let number = || {
        value
            .parse::<u32>()
            .map_err(|_| usage(format!("{name}={value}: --{name} takes a whole number")))
    };
    let text = || Some(value.to_owned());
    match name {
        "vmm" => spec.vmm = text(),
        "accel" => {
            spec.accel = Some(value.parse().map_err(|e| usage(format!("accel={value}: {e}")))?);
        }
        "machine" => spec.machine = text(),
        "firmware" => spec.firmware = text(),
        "kernel" => spec.kernel = Some(value.into()),
        "symbols" => spec.symbols = Some(value.into()),
        "initrd" => spec.initrd = Some(value.into()),
        "append" if value.is_empty() => {}
        "append" => spec.append.push(value.to_owned()),
        "smp" => spec.smp = Some(number()?),
        "memory" => spec.memory_mib = Some(number()?),
        "pcie-root-ports" => spec.pcie_root_ports = Some(number()?),
        "init" => spec.init = text(),
        "root" => spec.root = text(),
        "until" => spec.until = text(),
        "timeout" => spec.timeout_s = Some(number()?),
        other => return Err(usage(format!("{other}: no such machine option"))),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn range(text: &str) -> Vec<String> {
        Parameter::range(text).expect(text).values
    }

    #[test]
    fn lists_and_ranges() {
        assert_eq!(range("ports=0..4"), ["0", "1", "2", "3", "4"]);
        assert_eq!(range("memory=256..1000:256"), ["256", "512", "768"]);
        assert_eq!(range("x=-1..1"), ["-1", "0", "1"]);
        assert_eq!(range("x=0..0.5:0.25"), ["0.00", "0.25", "0.50"]);
        assert_eq!(range("x=3..3"), ["3"]);
        let list = Parameter::list(r"append=,a=1\,2,b").expect("a list");
        assert_eq!(list.values, ["", "a=1,2", "b"]);
        for wrong in ["x", "=1..2", "x=1", "x=2..1", "x=0..1:0", "x=a..b", "x=0..99999999999:1"] {
            let error = Parameter::range(wrong).expect_err(wrong).to_string();
            assert!(error.contains("FIRST..LAST"), "{error}");
        }
        assert!(Parameter::list("smp=1,1").expect_err("twice").to_string().contains("twice"));
    }

    fn labels(base: &MachineSpec, prepare: Option<&str>, given: &[&str]) -> Result<Vec<Point>> {
        let parameters: Result<Vec<Parameter>> =
            given
                .iter()
                .map(|text| {
                    if text.contains("..") {
                        Parameter::range(text)
                    } else {
                        Parameter::list(text)
                    }
                })
                .collect();
        points(base, prepare, &parameters?)
    }

    #[test]
    fn crossed_and_applied() {
        let base = MachineSpec { append: vec!["delay={ms}".into()], ..MachineSpec::default() };
        let points = labels(&base, None, &["smp=1,2", "ms=0..20:10"]).expect("points");
        assert_eq!(points.len(), 6);
        assert_eq!(points[1].label, "smp=1,ms=10");
        assert_eq!(points[5].spec.smp, Some(2));
        assert_eq!(points[5].spec.append, ["delay=20"]);
    }

    #[test]
    fn a_command_line_of_the_users_own_has_placeholders() {
        let command = vec!["qemu".into(), "-smp".into(), "{smp}".into(), "{\"a\": 1}".into()];
        let base = MachineSpec { command, ..MachineSpec::default() };
        let points = labels(&base, None, &["smp=1,2"]).expect("points");
        assert_eq!(points[1].spec.command, ["qemu", "-smp", "2", "{\"a\": 1}"]);
        assert_eq!(points[1].spec.smp, None);
        let error = labels(&base, None, &["memory=1,2"]).expect_err("unused").to_string();
        assert!(error.contains("{memory}"), "{error}");
        assert!(labels(&base, Some("echo {k}"), &["k=1,2"]).is_ok());
        assert_eq!(filled("echo {k}", &vec![("k".into(), "7".into())]), "echo 7");
    }

    #[test]
    fn what_nothing_uses_is_an_error() {
        let base = MachineSpec::default();
        let error = |given: &[&str]| labels(&base, None, given).expect_err("wrong").to_string();
        assert!(error(&["prots=0..2"]).contains("pcie-root-ports"));
        assert!(error(&["smp=1,2", "smp=3,4"]).contains("twice"));
        assert!(error(&["smp=one,two"]).contains("whole number"));
        assert!(error(&["smp=1..200", "memory=1..200"]).contains("points"));
    }

    proptest! {
        #[test]
        fn any_text(text in "[a-z]{0,3}=?(-?[0-9]{0,20}\\.?[0-9]{0,14}\\.\\.)?[-0-9.:,\\\\]{0,24}") {
            if let Ok(parameter) = Parameter::range(&text) {
                prop_assert!((1..=MAX_POINTS).contains(&parameter.values.len()));
                prop_assert!(repeated(&parameter.values).is_none());
            }
            if let Ok(parameter) = Parameter::list(&text) {
                prop_assert!(!parameter.values.is_empty());
            }
        }
    }
}
