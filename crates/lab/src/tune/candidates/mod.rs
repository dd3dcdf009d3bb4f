//! What may be tried on a machine: each known cause of a slow boot with a remedy. Those that `vmeter
//! findings` measures by a pair of machines stand in its catalogue; the others here, as data.

mod built;
mod initcalls;
mod kernel;
mod vmm;

use crate::findings::catalogue::{Part, Remedy, UserChange, UserRemedy, CATALOGUE};
use crate::findings::user_machine::OwnMachine;
use vmeter_model::tune::{Allow, Keep};
use vmeter_timeline::registry::Named;

/// Something that may be tried.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Candidate {
    /// The cause that it takes away.
    pub cause: Named,
    /// How.
    pub remedy: Remedy,
}

/// All candidates, in the order in which their changes are made.
pub(crate) fn all() -> Vec<Candidate> {
    let known = CATALOGUE.iter().filter_map(|finding| match finding.user_remedy {
        UserRemedy::Remedy(remedy) => Some(Candidate { cause: finding.cause, remedy }),
        UserRemedy::Never(_) => None,
    });
    let others = [vmm::ALL, built::ALL].into_iter().flatten().copied();
    others
        .chain(known)
        .chain([kernel::ALL, initcalls::ALL].into_iter().flatten().copied())
        .collect()
}

/// Known causes that nothing is tried for, and why: (id, title, reason).
pub(crate) fn never() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    CATALOGUE.iter().filter_map(|finding| match finding.user_remedy {
        UserRemedy::Never(why) => Some((finding.cause.id, finding.cause.title, why)),
        UserRemedy::Remedy(_) => None,
    })
}

impl Candidate {
    /// Its id.
    pub fn id(&self) -> &'static str {
        self.cause.id
    }

    /// Why it is not tried on this machine, if so: the machine has not the cause, or the user did not
    /// allow what it takes.
    pub fn barred(&self, machine: &OwnMachine, allow: &[Allow], keep: &[Keep]) -> Option<String> {
        let absent = machine.closed().or_else(|| (self.remedy.absent)(machine));
        absent
            .or_else(|| {
                let safe = self.remedy.is_safe_in(machine);
                let needs = self.remedy.needs.filter(|needs| !safe && !allow.contains(needs));
                needs.map(|needs| {
                    format!("needs --allow {needs}: this change gives up {}", self.remedy.gives_up)
                })
            })
            .or_else(|| {
                let kept = self.remedy.breaks.iter().find(|class| keep.contains(class))?;
                Some(format!(
                    "excluded by --keep {kept}: this change gives up {}",
                    self.remedy.gives_up
                ))
            })
    }

    /// True if it and the other one exclude each other.
    pub fn excludes(&self, other: &Candidate) -> bool {
        self.remedy.conflicts.contains(&other.id()) || other.remedy.conflicts.contains(&self.id())
    }

    /// True if both may save the same time.
    pub fn rivals(&self, other: &Candidate) -> bool {
        let same = |a: &Part, b: &Part| match (a, b) {
            (Part::Span(a, ..), Part::Span(b, ..)) => a == b,
            (Part::Printing(..), Part::Printing(..)) => true,
            _ => false,
        };
        let parts = self.remedy.predicts;
        parts.iter().any(|a| other.remedy.predicts.iter().any(|b| same(a, b)))
    }

    /// What it changes, in words.
    pub fn change(&self) -> String {
        let word = |change: &UserChange| match change {
            UserChange::Kernel(words) => (*words).to_owned(),
            UserChange::Arguments(words) => words.join(" "),
            UserChange::KernelLess(word) => format!("no {word}"),
            UserChange::KernelWithout(name) => format!("no {name}="),
            UserChange::Make(what, _) => (*what).to_owned(),
        };
        self.remedy.changes.iter().map(word).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use vmeter_model::MachineSpec;
    use vmeter_timeline::registry;

    #[test]
    fn each_is_of_the_registry_once_and_says_what_it_does() {
        let all = all();
        assert!(all.len() >= 45, "{}", all.len());
        for (at, one) in all.iter().enumerate() {
            assert!(registry::ALL.contains(&one.cause), "{}", one.id());
            assert!(all[..at].iter().all(|other| other.id() != one.id()), "{}", one.id());
            let waits = one.id() == "monitor-wait";
            assert!(waits || !one.change().is_empty() && !one.remedy.predicts.is_empty());
            for other in one.remedy.conflicts {
                assert!(all.iter().any(|c| c.id() == *other), "{other}");
            }
            for part in one.remedy.predicts {
                let (Part::Span(_, least, most) | Part::Printing(least, most)) = *part else {
                    continue;
                };
                assert!((0.0..=most).contains(&least) && most <= 1.0, "{}", one.id());
            }
        }
    }

    #[test]
    fn what_is_not_allowed_is_barred() {
        let spec = MachineSpec { smp: Some(2), ..MachineSpec::default() };
        let machine = OwnMachine::played(&spec);
        let barred = |id: &str, allow: &[Allow], keep: &[Keep]| {
            let one = all().into_iter().find(|c| c.id() == id).expect(id);
            one.barred(&machine, allow, keep)
        };
        for id in ["mitigations", "kaslr", "kernel-entry", "audit", "zeroing"] {
            let why = barred(id, &[], &[]).expect(id);
            assert!(why.starts_with("needs --allow insecure"), "{why}");
            assert_eq!(barred(id, &[Allow::Insecure], &[]), None, "{id}");
        }
        assert_eq!(barred("timer-check", &[], &[Keep::Acpi]), None);
        let why = barred("small-firmware", &[], &[Keep::Firmware]).expect("kept");
        assert!(why.starts_with("excluded by --keep firmware"), "{why}");
        let line = MachineSpec { append: vec!["nokaslr".into()], ..spec };
        let machine = OwnMachine::played(&line);
        let entry = all().into_iter().find(|c| c.id() == "kernel-entry").expect("PVH");
        assert_eq!(entry.barred(&machine, &[], &[]), None);
    }
}
