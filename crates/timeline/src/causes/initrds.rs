//! Who made the initrd that ran: what makes it smaller is a setting of that.

use vmeter_model::{Identity, Kind, Span, Timeline};

/// What a live medium's kernel is told, or its initrd's scripts are called.
const LIVE_WORDS: &[&str] = &["boot=live", "boot=casper", "rd.live.image", "root=live:"];
/// What only initramfs-tools' initrds print.
const STAGES: &[&str] =
    &["start", "load-drivers", "init-premount", "mount-root", "local-bottom", "init-bottom"];

/// What makes the initrd that ran smaller, by the tool that made it; none of a live medium's,
/// which has to fit every machine.
pub fn smaller_initrd(timeline: &Timeline) -> Option<&'static str> {
    let words = timeline.command_line.iter().flat_map(|line| line.split_whitespace());
    let words: Vec<&str> = words.collect();
    let has = |is: &dyn Fn(&str) -> bool| {
        let spans = timeline.spans.iter().chain(&timeline.overlapping);
        let mut names = spans.map(|span: &Span| span.name.as_str());
        names.any(is) || timeline.processes.iter().any(|process| is(&process.name))
    };
    if words.iter().any(|word| LIVE_WORDS.contains(word)) {
        return None;
    }
    // systemd's own units have names with dracut in them, whoever made the initrd.
    let tools = |name: &str| match Identity::of(name) {
        Identity { kind: Kind::Initrd, name, .. } => STAGES.contains(&name),
        Identity { kind, name, .. } => kind == Kind::Program && name.starts_with("/scripts/"),
    };
    let dracut = words.iter().any(|word| word.starts_with("rd."));
    Some(match dracut || has(&|name| name.contains("dracut")) {
        _ if has(&tools) => "a smaller initrd: MODULES=dep",
        true => "a smaller initrd: hostonly=yes",
        false => "a smaller initrd",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_is_that_of_the_tool_which_made_the_initrd() {
        let guest = |words: &str, name: &str| {
            let span = Span { name: name.to_owned(), end: 9, ..Span::default() };
            let command_line = Some(words.to_owned());
            let timeline = Timeline { command_line, spans: vec![span], ..Timeline::default() };
            smaller_initrd(&timeline)
        };
        let tools = Some("a smaller initrd: MODULES=dep");
        assert_eq!(guest("quiet", "exec /scripts/init-top/udev"), tools);
        assert_eq!(guest("quiet", "initrd:init-premount"), tools);
        let dracut = Some("a smaller initrd: hostonly=yes");
        assert_eq!(guest("quiet", "exec /bin/dracut-cmdline"), dracut);
        assert_eq!(guest("quiet rd.md=0", "initrd:udev"), dracut);
        assert_eq!(guest("quiet", "initrd:udev"), Some("a smaller initrd"));
        assert_eq!(guest("boot=live quiet", "exec /scripts/live"), None);
    }
}
