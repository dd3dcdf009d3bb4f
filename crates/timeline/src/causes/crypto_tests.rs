//! The kernel tests its cryptographic algorithms (crypto/testmgr.c) while it boots; these
//! initcalls wait for the tests of what they register or use.

use super::{registry, Kind, Known, PLAIN};

pub(super) const CAUSE: Known = Known {
    cause: registry::CRYPTO_TESTS,
    remedy: |_| Some("cryptomgr.notests (kernel)"),
    is: |of| {
        of.kind == Kind::Initcall && matches!(of.name, "crypto_algapi_init" | "crypto_kdf108_init")
    },
    ended_by: Some("cryptomgr.notests"),
    ..PLAIN
};
