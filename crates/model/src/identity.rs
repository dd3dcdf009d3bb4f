//! What the name of a span says it is: `unit a.service` is the unit `a.service`.

use std::fmt;

/// What the name of a span ends with that was still going on when the run ended.
pub const UNFINISHED: &str = ", unfinished";

/// What the name of a unit's span ends with that nobody waits for any more since its time was up.
pub const TIMED_OUT: &str = ", timed out";

macro_rules! kinds {
    ($($kind:ident = $word:literal),+ $(,)?) => {
        /// What a span is of. A name is the word and a colon before a part (`kernel:entry`), the
        /// word alone (`initrd`), or the word with its space before the rest (`unit a.service`).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Kind { $(#[doc = concat!("`", $word, "`.")] $kind),+ }

        impl Kind {
            const ALL: &'static [Kind] = &[$(Kind::$kind),+];

            /// As names have it, with a space where one follows.
            pub const fn word(self) -> &'static str {
                match self { $(Kind::$kind => $word),+ }
            }
        }
    };
}

kinds! {
    Vmm = "vmm", Firmware = "bios", Loader = "boot-loader", Grub = "grub", Syslinux = "syslinux",
    SystemdBoot = "systemd-boot", Ipxe = "ipxe", EfiStub = "efi-stub", Hypervisor = "hypervisor",
    Kernel = "kernel", Initcalls = "initcalls", Kexec = "kexec", Reboot = "reboot",
    Initrd = "initrd", SwitchRoot = "switch-root", Cryptsetup = "cryptsetup",
    Userspace = "userspace", Guest = "guest", Init = "/init", Systemd = "systemd",
    Person = "wait-for-a-person", Shutdown = "shutdown", Host = "host", Launcher = "launcher",
    Vmeter = "vmeter", Unattributed = "unattributed", Initcall = "initcall ", Module = "insmod ",
    Unit = "unit ", Stop = "stop ", Program = "exec ", Device = "load ", AfterLine = "after: ",
    LinesFrom = "lines from: ", Several = "+", Other = "",
}

/// What the name of a span says. Every text is one, and is written as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity<'a> {
    /// What it is of.
    pub kind: Kind,
    /// Which: a part, a unit, a command; empty for a whole phase. All of the text of
    /// [`Kind::Several`], which are phases with a plus between them, and of [`Kind::Other`].
    pub name: &'a str,
    /// True for a unit whose time was up.
    pub timed_out: bool,
    /// True for what went on when the run ended.
    pub unfinished: bool,
}

impl<'a> Identity<'a> {
    /// Reads a name.
    pub fn of(text: &'a str) -> Self {
        let cut = |text: &'a str, end| text.strip_suffix(end).map_or((text, false), |t| (t, true));
        let (bare, unfinished) = cut(text, UNFINISHED);
        // A program or a unit may have a plus in its name.
        let several = bare.contains('+') && !bare.contains(' ') && !bare.starts_with('/');
        let mut known = Kind::ALL.iter().filter(|_| !several);
        let found = known.find_map(|kind| Some((*kind, kind.name_in(bare)?)));
        let whole = if several { Kind::Several } else { Kind::Other };
        let (kind, name) = found.unwrap_or((whole, bare));
        let (name, timed_out) =
            if kind == Kind::Unit { cut(name, TIMED_OUT) } else { (name, false) };
        Identity { kind, name, timed_out, unfinished }
    }

    /// True for a function or a step that is called and returns: an initcall, a module's, init's.
    pub fn is_call(self) -> bool {
        matches!(self.kind, Kind::Initcall | Kind::Module | Kind::Init)
    }

    /// The name of a program's file, without its folder.
    pub fn file(self) -> Option<&'a str> {
        let program = self.name.split(' ').next().filter(|_| self.kind == Kind::Program)?;
        program.rsplit('/').next()
    }

    /// The phases of [`Kind::Several`]; of anything else itself.
    pub fn phases(self) -> impl Iterator<Item = Identity<'a>> {
        let several = self.kind == Kind::Several;
        let phases = self.name.split(move |c| several && c == '+');
        phases.map(move |phase| if several { Identity::of(phase) } else { self })
    }

    /// True for time that different parts of a machine share (`vmm:init+bios:overhead`). Such a
    /// name says where to look and not what was done: the time itself is
    /// [`crate::span::UNATTRIBUTED`].
    pub fn is_shared(self) -> bool {
        let mut parts = self.phases().map(|of| (of.kind, of.name.is_empty()));
        let first = parts.next();
        parts.any(|part| Some(part) != first)
    }
}

impl Kind {
    fn name_in(self, text: &str) -> Option<&str> {
        let rest = text.strip_prefix(self.word())?;
        match self.word().chars().next_back()? {
            ' ' => Some(rest),
            '+' => None,
            _ if rest.is_empty() => Some(rest),
            _ => rest.strip_prefix(':').filter(|name| !name.is_empty()),
        }
    }
}

impl fmt::Display for Identity<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = self.kind.word();
        match self.kind {
            Kind::Several | Kind::Other => {}
            _ if self.name.is_empty() || word.ends_with(' ') => f.write_str(word)?,
            _ => write!(f, "{word}:")?,
        }
        let end = |is, end| if is { end } else { "" };
        let ends = [end(self.timed_out, TIMED_OUT), end(self.unfinished, UNFINISHED)];
        write!(f, "{}{}{}", self.name, ends[0], ends[1])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_text_is_written_as_it_was(
            text: String,
            named in "[:+ ]?[a-z:+ ]{0,6}(, timed out)?(, unfinished)?",
        ) {
            prop_assert_eq!(Identity::of(&text).to_string(), text);
            for kind in Kind::ALL {
                let text = format!("{}{named}", kind.word());
                prop_assert_eq!(Identity::of(&text).to_string(), text);
            }
        }
    }

    #[test]
    fn a_name_says_what_a_span_is_of() {
        let of = |text| (Identity::of(text).kind, Identity::of(text).name);
        assert_eq!(of("kernel:entry"), (Kind::Kernel, "entry"));
        assert_eq!(of("initrd"), (Kind::Initrd, ""));
        assert_eq!(of("initcalls:subsys"), (Kind::Initcalls, "subsys"));
        assert_eq!(of("systemd-boot:menu, unfinished"), (Kind::SystemdBoot, "menu"));
        assert_eq!(of("wait-for-a-person: Which?"), (Kind::Person, " Which?"));
        assert_eq!(of("kernelx"), (Kind::Other, "kernelx"));
        let unit = Identity::of("unit a.device, timed out, unfinished");
        assert_eq!((unit.kind, unit.name), (Kind::Unit, "a.device"));
        assert!(unit.timed_out && unit.unfinished);
    }

    #[test]
    fn time_that_two_parts_of_a_machine_share_is_named_by_neither() {
        for name in
            ["vmm:init+bios:overhead", "boot-loader+kernel:decompress", "reboot+reboot:kernel"]
        {
            assert!(Identity::of(name).is_shared(), "{name}");
        }
        let named = ["kernel:decompress+kernel:entry", "grub:menu+grub:load", "vmm:init"];
        for name in named.into_iter().chain(["exec /bin/a+b", "unit a+b.service", "/init:a+b"]) {
            assert!(!Identity::of(name).is_shared(), "{name}");
        }
    }
}
