//! The kernel tests its cryptographic algorithms (crypto/testmgr.c) while it boots; these
//! initcalls wait for the tests of what they register or use.

use super::{registry, Known};

pub(super) const CAUSE: Known = Known {
    cause: registry::CRYPTO_TESTS,
    remedy: |_| Some("cryptomgr.notests (kernel)"),
    is: |name| matches!(name, "initcall crypto_algapi_init" | "initcall crypto_kdf108_init"),
    ended_by: Some("cryptomgr.notests"),
    needed_by: &[],
};
