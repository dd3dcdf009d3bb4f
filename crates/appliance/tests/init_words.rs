//! The init's own parsers, compiled for the host: they read a command line that a
//! user wrote and run where a panic ends the boot.

#![allow(dead_code, missing_docs)]

use proptest::prelude::*;

#[path = "../../../guest/init/src/options.rs"]
mod options;
#[path = "../../../guest/init/src/text.rs"]
mod text;

/// Stands in for the init's console.
mod steps {
    #[derive(Default)]
    pub struct Steps(pub std::cell::RefCell<Vec<String>>);

    impl Steps {
        pub fn complain(&self, _: &[u8], word: &[u8]) {
            self.0.borrow_mut().push(String::from_utf8_lossy(word).into_owned());
        }
    }
}

/// Stands in for the init's system calls.
mod sys {
    pub fn read_file<'b>(path: &std::ffi::CStr, buffer: &'b mut [u8]) -> Result<&'b [u8], ()> {
        let bytes = std::fs::read(path.to_str().map_err(drop)?).map_err(drop)?;
        let len = bytes.len().min(buffer.len());
        buffer[..len].copy_from_slice(&bytes[..len]);
        Ok(&buffer[..len])
    }
}

use options::{Action, Exit, Options};
use steps::Steps;

#[test]
fn every_word_is_understood() {
    let words = b"quiet trace_event=initcall:* vmeter.nomarkers vmeter.noready vmeter.report\n\
        vmeter.dump_trace vmeter.init=udev vmeter.root=dax:/dev/pmem1 vmeter.read=8 \
        vmeter.exit=debug:0xf4:3 vmeter.poweroff_delay=9 vmeter.memory vmeter.busy=1 \
        vmeter.sleep=a:2 vmeter.sleep_if_ports=3:4 vmeter.run=/bin/x -- other.word";
    let mut steps = Steps::default();
    let options = Options::parse(words, &mut steps);
    assert!(steps.0.borrow().is_empty(), "{:?}", steps.0);
    assert!(!options.markers && !options.announce && options.report && options.dump_trace);
    assert!(options.udev && options.root == b"dax:/dev/pmem1");
    assert_eq!((options.read_kib, options.poweroff_delay_ms), (8, 9));
    assert!(matches!(options.exit, Exit::Debug { port: 0xf4, value: 3 }));
    let actions: Vec<_> = options.actions().collect();
    assert!(matches!(
        actions[..],
        [
            Action::Memory,
            Action::Busy { ms: 1 },
            Action::Sleep { name: b"a", ms: 2 },
            Action::SleepIfPorts { ports: 3, ms: 4 },
            Action::Run { path: b"/bin/x" },
        ]
    ));
}

#[test]
fn wrong_words_are_named() {
    let mut steps = Steps::default();
    let wrong = "vmeter.sleep=a:b vmeter.exit=never vmeter.run=x vmeter.busy= vmeter.nothing";
    Options::parse(wrong.as_bytes(), &mut steps);
    assert_eq!(steps.0.borrow().join(" "), wrong);
}

#[test]
fn tracing_turns_markers_on() {
    let markers = |words: &[u8]| Options::parse(words, &mut Steps::default()).markers;
    assert!(!markers(b"quiet console=ttyS0"));
    assert!(markers(b"quiet trace_event=initcall:*"));
    assert!(markers(b"vmeter.markers"));
}

#[test]
fn module_steps_are_named_as_the_kernel_does() {
    let name = text::module_name(b"/lib/modules/6.1/kernel/arch/x86/crypto/crc32c-intel.ko.xz");
    assert_eq!(name.bytes(), b"insmod crc32c_intel");
}

#[test]
fn file_and_command_line_are_joined() {
    let mut buffer = [0; options::WORDS];
    let words = options::read_words(c"/proc/self/comm", &mut buffer);
    let mut line = std::fs::read("/proc/cmdline").unwrap();
    line.truncate(options::WORDS / 2);
    assert!(words.ends_with(&line));
    assert!(words.starts_with(&std::fs::read("/proc/self/comm").unwrap()[..5]));
}

proptest! {
    #[test]
    fn any_command_line_is_survived(
        words in prop::collection::vec("(vmeter\\.)?(sleep|exit|run|busy|root|sleep_if_ports)?=?[a-z0-9:/x\u{e9}]{0,30}", 0..20),
        noise in prop::collection::vec(any::<u8>(), 0..100),
    ) {
        let text = [words.join(" ").into_bytes(), noise].concat();
        let mut steps = Steps::default();
        let options = Options::parse(&text, &mut steps);
        prop_assert!(options.actions().count() <= words.len() + 50);
        let _ = text::module_name(&text);
        prop_assert!(text::lines(&text).all(|line| !line.is_empty()));
    }

    #[test]
    fn numbers_are_read_as_they_are_written(value in any::<u64>()) {
        let mut decimal = text::Text::<32>::new();
        decimal.push_number(value);
        let expected = value.to_string();
        prop_assert_eq!(decimal.bytes(), expected.as_bytes());
        prop_assert_eq!(text::number(decimal.bytes()), Some(value));
        prop_assert_eq!(text::any_number(format!("{value:#x}").as_bytes()), Some(value));
        prop_assert_eq!(text::number(format!("{value}0000000000000000000000").as_bytes()), (value == 0).then_some(0));
    }

    #[test]
    fn text_never_overflows(pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..20), 0..20)) {
        let mut text = text::Text::<64>::new();
        for piece in &pieces {
            text.push(piece);
        }
        prop_assert!(text.bytes().len() < 64);
        prop_assert_eq!(text.c_str().to_bytes(), text.bytes());
    }
}
