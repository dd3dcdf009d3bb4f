// SPDX-License-Identifier: Apache-2.0 OR MIT

//! What is to be done if a call into the user's kernel panics.

/// Makes the call; `lost` is run if it panics, while that unwinds.
pub(crate) fn on_panic<T>(lost: impl FnMut(), call: impl FnOnce() -> T) -> T {
    struct Lost<F: FnMut()>(F);
    impl<F: FnMut()> Drop for Lost<F> {
        fn drop(&mut self) {
            self.0();
        }
    }
    let lost = Lost(lost);
    let result = call();
    std::mem::forget(lost);
    result
}
