//! cryptsetup derives the key that opens a LUKS volume in as many rounds (PBKDF2, Argon2) as the
//! machine that made it did in two seconds; a key file that is random needs none of them.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::LUKS_KEY,
    remedy: |_| Some("luksChangeKey -i: fewer PBKDF rounds"),
    is: |of| match of.file() {
        Some("cryptsetup") => ["--type=luks", "--type luks", " open", " luksOpen"]
            .iter()
            .any(|word| of.name.contains(word)),
        Some("systemd-cryptsetup") => of.name.contains(" attach"),
        _ => (of.kind, of.name) == (Kind::Cryptsetup, "open"),
    },
    ..PLAIN
};
