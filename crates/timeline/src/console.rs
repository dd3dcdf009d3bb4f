//! What `initcall_debug` prints, read out of console or log text.
//!
//! The kernel prints a pair of lines around each initcall (kernel:
//! init/main.c, `trace_initcall_start_cb` and `trace_initcall_finish_cb`):
//!
//! ```text
//! [    0.214595] calling  con_init+0x0/0x22c @ 0
//! [    0.217320] initcall con_init+0x0/0x22c returned 0 after 2661 usecs
//! ```
//!
//! with ` [module]` after the symbol of a module's; a kernel without `CONFIG_KALLSYMS` prints the
//! function's address alone. Nothing else about such text
//! can be relied on: stamps may be off, levels (`<6>`) or caller ids (`[T1]`) on,
//! other CPUs and user space print in between, and a line can be cut in two or
//! run into the next. PCI quirks and device callbacks print the same words after
//! their device's name; those are no initcalls and are left out.

use regex::Regex;
use vmeter_model::expression::compiled;
pub use vmeter_model::kernel_log::split_stamp;

/// What a line says about an initcall.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Record {
    /// `calling  FUNCTION+0x0/0x10 [MODULE] @ PID`
    Calling {
        /// Function, without offset.
        function: String,
        /// Module, if it is one's.
        module: Option<String>,
        /// Thread; 0 is the boot CPU before there are threads.
        pid: Option<i32>,
    },
    /// `initcall FUNCTION+0x0/0x10 [MODULE] returned RET after N usecs`
    Returned {
        /// Function, without offset.
        function: String,
        /// Module, if it is one's.
        module: Option<String>,
        /// What it returned, unless the line was cut before.
        ret: Option<i64>,
        /// How long it took, µs, unless the line was cut before. Older kernels
        /// print ns / 1024 under the same name.
        usecs: Option<u64>,
    },
}

/// Everything that one line says about initcalls, in the order it is said.
pub fn records(line: &str) -> Vec<Record> {
    if !line.contains("calling") && !line.contains("initcall") {
        return Vec::new();
    }
    let found = record_regex().into_iter().flat_map(|regex| regex.captures_iter(line));
    found.filter(|c| !of_a_device(line, c)).map(|c| record(&c)).collect()
}

/// Reads lines one after another and mends those that were cut in two.
///
/// Lines are remembered only while they look like the head of a record, and only
/// their last [`Parser::KEPT`] bytes, so memory is bounded whatever is fed.
#[derive(Debug, Default)]
pub struct Parser {
    head: String,
}

impl Parser {
    /// Longest head of a cut line that is kept, bytes.
    pub const KEPT: usize = 512;

    /// What the next line says; a cut record is returned when its rest arrives.
    pub fn feed(&mut self, line: &str) -> Vec<Record> {
        let line = split_stamp(line).1;
        let mut said = records(line);
        if said.is_empty() && !self.head.is_empty() {
            let joined = std::mem::take(&mut self.head) + line;
            said = records(&joined);
            if said.is_empty() {
                // Another line came between the two halves.
                self.head = joined[..joined.len() - line.len()].to_owned();
            }
        }
        if let Some(head) = cut_head(line) {
            self.head = head.to_owned();
        } else if !said.is_empty() {
            self.head.clear();
        }
        said
    }
}

/// The part of a line that begins a record and ends before its symbol does.
fn cut_head(line: &str) -> Option<&str> {
    let head = compiled(r"(?:calling  ?|initcall )[\w.]*(?:\+(?:0x?)?)?$")?;
    let found = head.find(line)?;
    (found.len() <= Parser::KEPT && !after_a_device(line, found.start())).then(|| found.as_str())
}

fn record_regex() -> Option<&'static Regex> {
    compiled(concat!(
        r"(?:(?P<calling>calling  ?)|initcall )",
        r"(?:(?P<function>[\w.]+)\+0x[0-9a-f]+(?:/0x[0-9a-f]+)?|(?P<address>0x[0-9a-f]{8,16}))",
        r"(?: \[(?P<module>[\w-]+)\])?",
        r"(?: @ (?P<pid>\d+))?",
        r"(?P<returned> returned(?: (?P<ret>-?\d+))?(?: after (?P<usecs>\d+) usecs)?)?",
    ))
}

fn of_a_device(line: &str, found: &regex::Captures<'_>) -> bool {
    let start = found.get(0).map_or(0, |m| m.start());
    // `initcall X blacklisted` and the like: no return, so no record.
    let no_return = found.name("calling").is_none() && found.name("returned").is_none();
    no_return || after_a_device(line, start)
}

fn after_a_device(line: &str, start: usize) -> bool {
    line[..start].ends_with(": ")
}

fn record(found: &regex::Captures<'_>) -> Record {
    let text = |name: &str| found.name(name).map(|m| m.as_str());
    let function = text("function").or_else(|| text("address")).unwrap_or_default().to_owned();
    let module = text("module").map(str::to_owned);
    if text("calling").is_some() {
        let pid = text("pid").and_then(|t| t.parse().ok());
        Record::Calling { function, module, pid }
    } else {
        let ret = text("ret").and_then(|t| t.parse().ok());
        let usecs = text("usecs").and_then(|t| t.parse().ok());
        Record::Returned { function, module, ret, usecs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn calling(function: &str, module: Option<&str>, pid: Option<i32>) -> Record {
        Record::Calling { function: function.into(), module: module.map(str::to_owned), pid }
    }

    fn returned(function: &str, ret: i64, usecs: u64) -> Record {
        let (ret, usecs) = (Some(ret), Some(usecs));
        Record::Returned { function: function.into(), module: None, ret, usecs }
    }

    #[test]
    fn plain_stamped_and_decorated_lines() {
        for prefix in ["", "[    0.214595] ", "<6>[    0.214595] ", "[    0.214595][    T1] "] {
            let mut parser = Parser::default();
            let line = format!("{prefix}calling  con_init+0x0/0x22c @ 0");
            assert_eq!(parser.feed(&line), [calling("con_init", None, Some(0))], "{line}");
            let line = format!("{prefix}initcall con_init+0x0/0x22c returned -19 after 7 usecs");
            assert_eq!(parser.feed(&line), [returned("con_init", -19, 7)], "{line}");
        }
        assert_eq!(split_stamp("[  12.000345] x y"), (Some(12_000_345_000), "x y"));
        assert_eq!(split_stamp("no stamp"), (None, "no stamp"));
    }

    #[test]
    fn a_kernel_without_kallsyms_prints_addresses() {
        let address = "0xffffffff81a3c0f0";
        let mut parser = Parser::default();
        let line = format!("[    0.1] calling  {address} @ 1");
        assert_eq!(parser.feed(&line), [calling(address, None, Some(1))]);
        let line = format!("[    0.1] initcall {address} returned 0 after 12 usecs");
        assert_eq!(parser.feed(&line), [returned(address, 0, 12)]);
    }

    #[test]
    fn a_module_is_named() {
        let said = records("calling  virtio_net_driver_init+0x0/0x1000 [virtio_net] @ 142");
        assert_eq!(said, [calling("virtio_net_driver_init", Some("virtio_net"), Some(142))]);
    }

    #[test]
    fn devices_that_use_the_same_words_are_not_initcalls() {
        for line in [
            "pci 0000:00:1f.0: calling  quirk_ich7_lpc+0x0/0x60 @ 1",
            "pci 0000:00:1f.0: quirk_ich7_lpc+0x0/0x60 took 0 usecs",
            "initcall foo_init+0x0/0x10 blacklisted",
            "calling home",
            "virtio_blk: Unknown symbol virtqueue_kick (err -2)",
        ] {
            assert_eq!(Parser::default().feed(line), [], "{line}");
        }
    }

    #[test]
    fn lines_that_ran_together_are_told_apart() {
        let line = "initcall a_init+0x0/0x1 returned 0 after 3 useccalling  b_init+0x0/0x2 @ 1";
        let said = records(line);
        assert_eq!(said.len(), 2);
        assert_eq!(said[1], calling("b_init", None, Some(1)));
    }

    #[test]
    fn cut_lines_are_joined_over_what_came_between() {
        let mut parser = Parser::default();
        assert_eq!(parser.feed("[    1.0] calling  acpi_"), []);
        assert_eq!(parser.feed("udevd[71]: starting"), []);
        assert_eq!(parser.feed("init+0x0/0x58c @ 1"), [calling("acpi_init", None, Some(1))]);
        let cut = records("initcall x_init+0x0/0x10 returned 0 aft");
        let whole =
            Record::Returned { function: "x_init".into(), module: None, ret: Some(0), usecs: None };
        assert_eq!(cut, [whole]);
    }

    #[test]
    fn every_expression_compiles() {
        assert!(record_regex().is_some_and(|r| r.is_match("calling  a+0x0/0x1 @ 1")));
        assert_eq!(split_stamp("[    0.000002] a"), (Some(2_000), "a"));
        assert!(cut_head("calling  a").is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_survived(lines in proptest::collection::vec(".{0,200}", 0..20)) {
            let mut parser = Parser::default();
            for line in &lines {
                parser.feed(line);
                prop_assert!(parser.head.len() <= Parser::KEPT);
            }
        }

        #[test]
        fn near_misses_are_survived(
            line in "(\\[ *[0-9.]{0,20}\\] ?)?(calling  |initcall )?[a-z_]{0,8}(\\+0x[0-9a-f]{0,4})?.{0,40}"
        ) {
            let mut parser = Parser::default();
            for end in (0..=line.len()).filter(|i| line.is_char_boundary(*i)) {
                parser.feed(&line[..end]);
                parser.feed(&line[end..]);
            }
        }
    }
}
