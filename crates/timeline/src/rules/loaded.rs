//! The files that a boot loader reads, where it says a line of each: SYSLINUX's `Loading FILE...`
//! and iPXE's `FILE... ok`, both from the file's name to the `ok` behind it.

use crate::facts::RunIndex;
use crate::lines::Line;
use crate::tree::{Growing, Node};
use vmeter_model::Ns;

/// Parts in which files are read one after the other, and what is before a file's name.
const PARTS: &[(&str, &str)] = &[("syslinux:load", "Loading "), ("ipxe:download", "")];
/// Longest name of a file, characters.
const MAX_NAME: usize = 40;

/// A part of the loader's: its name, from when, to when.
pub(super) type Part = (&'static str, Ns, Ns);

/// Places each file that was read in one of these parts, which are in order.
pub(super) fn files<'a>(facts: &RunIndex<'a>, tree: &mut Growing<'a>, parts: &[Part]) {
    let Some(end) = parts.last().map(|last| last.2) else { return };
    let inside = |l: &&Line<'_>| l.early && l.end <= end;
    for line in facts.lines.iter().filter(inside) {
        let next = parts.partition_point(|(_, from, _)| *from <= line.at);
        let part = next.checked_sub(1).map(|index| parts[index]).filter(|part| line.end <= part.2);
        let known = |name: &str| PARTS.iter().find(|(part, _)| *part == name);
        let Some((name, before)) = part.and_then(|part| known(part.0)) else { continue };
        let Some(file) = file(line.text, before) else { continue };
        let node = Node::new(format!("{name} {file}"), line.at, line.end, line.source);
        tree.place(Node { error: line.error, ..node });
    }
}

/// The name of the file that a line says was read, without its folder.
fn file<'t>(text: &'t str, before: &str) -> Option<&'t str> {
    let text = text.trim_end();
    let read = text.ends_with("ok") || text.ends_with("ookk");
    let (path, _) = text.strip_prefix(before)?.split_once("..").filter(|_| read)?;
    let path = path.split(['?', '#']).next()?;
    let file = path.rsplit('/').next()?;
    let plain = !file.is_empty() && !file.contains(char::is_whitespace);
    (plain && file.chars().count() <= MAX_NAME).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_named_by_its_own_line() {
        assert_eq!(file("Loading vmlinuz... ok", "Loading "), Some("vmlinuz"));
        // The BIOS shows the screen on the same serial line.
        let twice = "Loading initrd.gz..Loading initrd.gz....ookk";
        assert_eq!(file(twice, "Loading "), Some("initrd.gz"));
        assert_eq!(file("http://10.0.2.2/a/b.img?x=1... ok", ""), Some("b.img"));
        assert_eq!(
            file("vmlinuz... 72%\u{8}\u{8}\u{8}    \u{8}\u{8}\u{8} ok", ""),
            Some("vmlinuz")
        );
        assert_eq!(file("Configuring (net0 52:54:00:12:34:56)...... ok", ""), None);
        assert_eq!(file("Loading vmlinuz... failed: No such file", "Loading "), None);
    }
}
