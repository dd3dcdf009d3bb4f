#!/bin/sh
# The libraries on arm64: whether they compile and, on such a host or by qemu-user, their tests that
# need no KVM. What is not there is skipped with a line.
#   arm64.sh         all that can be done here
#   arm64.sh check   whether they compile
set -eu
cd "$(dirname "$0")/.."
target=aarch64-unknown-linux-gnu

if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    echo "skipped: the libraries on arm64: no $target here (rustup target add $target)"
    exit 0
fi
cargo check --locked --target "$target" -p msi-routes -p dirty-log -p dirty-trackers \
    -p vmeter-dirty-switch --all-features
[ "${1:-}" != check ] || exit 0

if [ "$(uname -m)" != aarch64 ]; then
    qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64 || true)
    linker=$(command -v aarch64-linux-gnu-gcc || true)
    if [ -z "$qemu" ] || [ -z "$linker" ]; then
        echo "skipped: tests on arm64: no qemu-user-static and gcc-aarch64-linux-gnu here"
        exit 0
    fi
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="$qemu -L /usr/aarch64-linux-gnu"
    # An emulated CPU is slow.
    export DIRTY_LOG_STRESS_MARKS="${DIRTY_LOG_STRESS_MARKS:-20000}"
    export MSI_ROUTES_SEEDS="${MSI_ROUTES_SEEDS:-1-100}"
    fork=
else
    fork='--test fork'
fi
cargo test --locked --target "$target" -p msi-routes \
    --lib --test it -- devid:: panics:: random_guest:: shared_gates::
# qemu-user takes minutes for each fork of a process with threads.
# shellcheck disable=SC2086  # two words, or none
cargo test --locked --target "$target" -p vmeter-dirty-switch $fork \
    --lib --test consumed --test memory_log --test strategies --test stress \
    --test stress_full_fences
cargo test --locked --target "$target" -p dirty-log \
    --lib --test consumed --test page_set --test summary --test vm_memory
cargo test --locked --target "$target" -p dirty-trackers --lib
