//! Which events a user asked for.

use crate::event::{Body, Event};

/// A choice of events; an empty list chooses all.
#[derive(Debug, Clone, Default)]
pub struct Select {
    /// Patterns with `*` and `?` for the name, or for `system:name` if they have a colon.
    pub events: Vec<String>,
    /// CPUs.
    pub cpus: Vec<u32>,
    /// Threads.
    pub tids: Vec<i32>,
    /// First stamp, ticks.
    pub from: Option<u64>,
    /// Last stamp, ticks.
    pub to: Option<u64>,
    /// By event type: whether its name was asked for, once that is known.
    known: Vec<Option<bool>>,
}

impl Select {
    /// Events by name, CPU and thread, at any time.
    pub fn new(events: Vec<String>, cpus: Vec<u32>, tids: Vec<i32>) -> Select {
        Select { events, cpus, tids, ..Select::default() }
    }

    /// True if the event was asked for. Marks of lost events are asked for with their CPU.
    pub fn has(&mut self, event: &Event<'_>) -> bool {
        let lost = matches!(event.body, Body::Lost(_));
        self.from.is_none_or(|from| event.ts >= from)
            && self.to.is_none_or(|to| event.ts <= to)
            && (self.cpus.is_empty() || self.cpus.contains(&event.cpu))
            && (lost || self.tids.is_empty() || self.tids.contains(&event.tid))
            && (lost || self.events.is_empty() || self.has_kind(event))
    }

    fn has_kind(&mut self, event: &Event<'_>) -> bool {
        let id = event.kind.id as usize;
        if let Some(Some(known)) = self.known.get(id) {
            return *known;
        }
        let (system, name) = (&event.kind.system, &event.kind.name);
        let full = format!("{system}:{name}");
        let matches = |pattern: &String| {
            if pattern.contains(':') {
                glob(pattern.as_bytes(), full.as_bytes())
            } else {
                glob(pattern.as_bytes(), name.as_bytes())
            }
        };
        let found = self.events.iter().any(matches);
        if id < 1 << 17 {
            if self.known.len() <= id {
                self.known.resize(id + 1, None);
            }
            self.known[id] = Some(found);
        }
        found
    }
}

/// True if all of `text` matches; `*` any run, `?` any one byte.
pub fn glob(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on after a mismatch: behind the last star, one byte further.
    let mut star = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p + 1, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => (p, t) = (p + 1, t + 1),
            _ => match &mut star {
                Some((after, from)) => {
                    *from += 1;
                    (p, t) = (*after, *from);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

#[cfg(test)]
mod tests {
    use super::glob;
    use proptest::prelude::*;

    #[test]
    fn patterns() {
        let matches = |p: &str, t: &str| glob(p.as_bytes(), t.as_bytes());
        assert!(matches("kvm:*", "kvm:kvm_exit") && matches("sys_*_read", "sys_enter_read"));
        assert!(matches("*", "") && matches("a?c", "abc") && matches("*a*b", "xaybb"));
        assert!(!matches("kvm_exit", "kvm_exits") && !matches("", "a") && !matches("a?", "a"));
    }

    proptest! {
        #[test]
        fn a_text_matches_itself_and_its_own_stars(text in "[a-z]{0,12}", at in 0usize..12) {
            let at = at.min(text.len());
            prop_assert!(glob(text.as_bytes(), text.as_bytes()));
            let starred = format!("{}*{}", &text[..at], &text[at..]);
            prop_assert!(glob(starred.as_bytes(), text.as_bytes()));
        }

        #[test]
        fn any_pattern(pattern in "[ab*?]{0,16}", text in "[ab]{0,40}") {
            glob(pattern.as_bytes(), text.as_bytes());
        }
    }
}
