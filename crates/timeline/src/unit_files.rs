//! Which unit of systemd waits for which others, by their files.
//!
//! What files don't say systemd adds by itself (systemd.unit(5), systemd.service(5),
//! systemd.target(5), systemd.socket(5), systemd.mount(5): "Automatic Dependencies"). A file
//! whose name was not known any more is that of the unit with its description.

use crate::input::Seen;
use crate::lines::Line;
use crate::rules::described;
use std::collections::{BTreeMap, HashMap, HashSet};
use vmeter_model::{EventKind, UnitFile};

/// What services, and what sockets, paths and timers come after.
const BASIC: &str = "basic.target";
const SYSINIT: &str = "sysinit.target";
/// What each kind of unit comes before.
const COLLECTS: &[(&str, &str)] = &[
    (".socket", "sockets.target"),
    (".path", "paths.target"),
    (".timer", "timers.target"),
    (".mount", "local-fs.target"),
    (".swap", "swap.target"),
];

/// The order of the units whose files are known.
#[derive(Debug, Clone, Default)]
pub(crate) struct Orders<'a> {
    files: HashMap<&'a str, &'a UnitFile>,
    /// For each unit those that come before it by their own word.
    before: HashMap<&'a str, Vec<&'a str>>,
    /// For each unit those that it pulls by their word.
    pulls: HashMap<&'a str, Vec<&'a str>>,
}

impl<'a> Orders<'a> {
    /// Reads the events once; lines tell a unit's name with its description.
    pub(crate) fn of(seen: &[Seen<'a>], lines: &[Line<'a>]) -> Self {
        let files: Vec<&UnitFile> = seen
            .iter()
            .filter_map(|s| match s.what {
                EventKind::UnitFile { file } => Some(file),
                _ => None,
            })
            .collect();
        if files.is_empty() {
            return Orders::default();
        }
        Self::of_files(&files, lines.iter().filter_map(|line| described(line.text)))
    }

    /// By the units' files, and names of units with their descriptions.
    pub(crate) fn of_files(
        files: &[&'a UnitFile],
        described: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Self {
        let mut orders = Orders::default();
        let mut known: BTreeMap<&'a str, &'a UnitFile> = BTreeMap::new();
        known.extend(files.iter().filter(|f| !f.name.is_empty()).map(|f| (f.name.as_str(), *f)));
        let named = described.collect::<BTreeMap<_, _>>();
        for (name, description) in named {
            if of_unit(&known, name).is_some() {
                continue;
            }
            let own = |file: &&&UnitFile| {
                file.name.is_empty()
                    && with_instance(&file.description, name).trim_end_matches('.') == description
            };
            let mut found = files.iter().filter(own);
            // Of two that are described alike nobody knows which it is.
            if let (Some(file), None) = (found.next(), found.next()) {
                known.insert(name, file);
            }
        }
        for (name, file) in &known {
            let collects = COLLECTS.iter().find(|(kind, _)| name.ends_with(kind));
            let collects = collects.map(|(_, target)| *target).filter(|_| file.default);
            for other in file.before.iter().map(String::as_str).chain(collects) {
                orders.before.entry(other).or_default().push(name);
            }
            for other in &file.pulled_by {
                orders.pulls.entry(other).or_default().push(name);
            }
        }
        orders.files = known.into_iter().collect();
        orders
    }

    /// What `unit` waits for among those that are `shown`, through those that are not; none if
    /// its file is not known.
    pub(crate) fn waited_for<T>(
        &self,
        unit: &str,
        shown: impl Fn(&str) -> Option<T>,
    ) -> Option<Vec<T>> {
        self.file(unit)?;
        let mut found = Vec::new();
        let mut known: HashSet<String> = HashSet::from([unit.to_owned()]);
        let mut pending = vec![unit.to_owned()];
        while let Some(unit) = pending.pop() {
            for other in self.after(&unit) {
                if !known.insert(other.clone()) {
                    continue;
                }
                match shown(&other) {
                    Some(other) => found.push(other),
                    None => pending.push(other),
                }
            }
        }
        Some(found)
    }

    fn file(&self, unit: &str) -> Option<&'a UnitFile> {
        let of_template = || self.files.get(template(unit)?.as_str()).copied();
        self.files.get(unit).copied().or_else(of_template)
    }

    /// What a unit comes after, as far as it is known.
    fn after(&self, unit: &str) -> Vec<String> {
        let said = self.before.get(unit).into_iter().flatten();
        let mut after: Vec<String> = said.map(|name| (*name).to_owned()).collect();
        let Some(file) = self.file(unit) else { return after };
        after.extend(file.after.iter().map(|name| with_instance(name, unit)));
        if !file.default {
            return after;
        }
        let kind = unit.rsplit_once('.').map_or("", |(_, kind)| kind);
        let basic: &[&str] = match kind {
            "service" => &[BASIC, SYSINIT],
            "socket" | "path" | "timer" => &[SYSINIT],
            _ => &[],
        };
        after.extend(basic.iter().map(|name| (*name).to_owned()));
        if kind == "service" {
            let socket = format!("{}socket", &unit[..unit.len() - kind.len()]);
            after.extend(Some(socket).filter(|socket| self.file(socket).is_some()));
        }
        if kind == "target" {
            let own = |name: &&str| self.file(name).is_none_or(|file| file.default);
            let by_them = self.pulls.get(unit).into_iter().flatten().copied();
            let pulled = file.pulls.iter().map(String::as_str).chain(by_them);
            after.extend(pulled.filter(own).map(str::to_owned));
        }
        after
    }
}

/// A unit's file: of an instance its template's.
fn of_unit<'a>(files: &BTreeMap<&'a str, &'a UnitFile>, unit: &str) -> Option<&'a UnitFile> {
    let of_template = || files.get(template(unit)?.as_str()).copied();
    files.get(unit).copied().or_else(of_template)
}

/// `name@.kind` of `name@instance.kind`.
fn template(unit: &str) -> Option<String> {
    let (before, rest) = unit.split_once('@')?;
    let (_, kind) = rest.rsplit_once('.')?;
    Some(format!("{before}@.{kind}"))
}

/// A text of a template's file, as it is for an instance.
fn with_instance(text: &str, unit: &str) -> String {
    let instance = unit.split_once('@').and_then(|(_, rest)| rest.rsplit_once('.'));
    let instance = instance.map_or("", |(instance, _)| instance);
    ["%i", "%I", "%f"].iter().fold(text.to_owned(), |text, word| text.replace(word, instance))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, after: &[&str], before: &[&str], pulled_by: &[&str]) -> UnitFile {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let (after, before, pulled_by) = (own(after), own(before), own(pulled_by));
        let name = name.to_owned();
        UnitFile { name, after, before, pulled_by, default: true, ..UnitFile::default() }
    }

    fn orders(files: &[UnitFile]) -> Orders<'_> {
        let described = [("late.service", "Late"), ("twin.service", "Twin")];
        Orders::of_files(&files.iter().collect::<Vec<_>>(), described.into_iter())
    }

    fn found(orders: &Orders<'_>, unit: &str, shown: &[&str]) -> Option<Vec<String>> {
        let shown = |name: &str| shown.contains(&name).then(|| name.to_owned());
        let mut found = orders.waited_for(unit, shown)?;
        found.sort();
        Some(found)
    }

    #[test]
    fn what_is_not_shown_is_gone_through() {
        let described = |name: &str| UnitFile {
            description: name.to_owned(),
            default: true,
            ..UnitFile::default()
        };
        let mut late = described("Late");
        late.after.push("slow.service".into());
        let files = [
            file("serial-getty@.service", &["dev-%i.device"], &["getty.target"], &[]),
            file("slow.service", &[], &["serial-getty@ttyS0.service"], &["multi-user.target"]),
            file("basic.target", &["paths.target", "sysinit.target"], &[], &[]),
            file("a.socket", &[], &[], &[]),
            file("a.service", &[], &[], &[]),
            file("sockets.target", &[], &["basic.target"], &[]),
            file("multi-user.target", &[], &[], &[]),
            late,
            described("Twin"),
            described("Twin"),
        ];
        let orders = orders(&files);
        let all = ["a.socket", "dev-ttyS0.device", "slow.service", "sysinit.target"];
        // a.socket comes by basic.target and sockets.target, which nobody showed.
        let own = |names: &[&str]| Some(names.iter().map(|n| (*n).to_owned()).collect());
        assert_eq!(found(&orders, "serial-getty@ttyS0.service", &all), own(&all));
        assert_eq!(found(&orders, "a.service", &["a.socket"]), own(&["a.socket"]));
        assert_eq!(found(&orders, "multi-user.target", &all), own(&["slow.service"]));
        assert_eq!(found(&orders, "late.service", &["slow.service"]), own(&["slow.service"]));
        assert_eq!(found(&orders, "twin.service", &all), None);
    }

    #[test]
    fn circles_end() {
        let files = [file("a.service", &["b.service"], &["b.service"], &[])];
        assert_eq!(found(&orders(&files), "a.service", &[]), Some(Vec::new()));
    }
}
