//! cryptsetup derives the key that opens a LUKS volume in as many rounds (PBKDF2, Argon2) as the
//! machine that made it did in two seconds; a key file that is random needs none of them.

use super::{registry, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::LUKS_KEY,
    remedy: |_| Some("luksChangeKey -i: fewer PBKDF rounds"),
    is: |name| {
        let command = name.strip_prefix("exec ").unwrap_or_default();
        let program = command.split(' ').next().unwrap_or_default();
        let file = program.rsplit('/').next().unwrap_or_default();
        match file {
            "cryptsetup" => ["--type=luks", "--type luks", " open", " luksOpen"]
                .iter()
                .any(|word| command.contains(word)),
            "systemd-cryptsetup" => command.contains(" attach"),
            _ => name == "cryptsetup:open",
        }
    },
    ended_by: None,
    needed_by: &[],
};
