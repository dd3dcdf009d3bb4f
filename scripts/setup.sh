#!/bin/sh
# Installs what is missing on a Debian machine: called by make, says what it does,
# does nothing (and needs no privileges) where everything is there already.
#   setup.sh boot   what building vmeter and booting a guest needs
#   setup.sh test   and what the tests use besides
#   setup.sh lint   and what formatting and lints use
set -eu

want=
need() { # command or file, Debian package
    command -v "$1" >/dev/null 2>&1 || [ -e "$1" ] || want="$want $2"
}

need cc gcc
need /usr/include/stdlib.h libc6-dev
need qemu-system-x86_64 qemu-system-x86
need /usr/share/seabios/bios-256k.bin seabios
need dpkg-deb dpkg
need git git
need strip binutils
if [ "${1:-boot}" = test ]; then
    need qemu-img qemu-utils
    need udevadm udev
    need kmod kmod
    need mke2fs e2fsprogs
    need busybox busybox-static
    need trace-cmd trace-cmd
    need chromium chromium
    need /usr/sbin/slurmctld slurmctld
    need /usr/sbin/slurmd slurmd
    need sbatch slurm-client
    need /usr/sbin/munged munge
fi

# Rust 1.85 or later: rustup's if it is there, else Debian's newest.
new_enough() {
    version=$("$1" --version 2>/dev/null | sed 's/^[a-z]* 1\.\([0-9]*\)\..*/\1/')
    [ "${version:-0}" -ge 85 ] 2>/dev/null
}
if [ -x "${CARGO_HOME:-$HOME/.cargo}/bin/cargo" ]; then
    PATH="${CARGO_HOME:-$HOME/.cargo}/bin:$PATH"
fi
if ! new_enough rustc || ! command -v cargo >/dev/null 2>&1; then
    want="$want cargo-web rustc-web"
fi
if [ "${1:-boot}" = lint ]; then
    need cargo-fmt rustfmt-web
    need cargo-clippy rust-web-clippy
fi

[ -n "$want" ] || exit 0
echo "setup: installing$want" >&2
if [ "$(id -u)" = 0 ]; then as_root=; else as_root=sudo; fi
if ! command -v apt-get >/dev/null 2>&1; then
    echo "setup: no apt-get here: install these by hand:$want" >&2
    exit 3
fi
export DEBIAN_FRONTEND=noninteractive
$as_root apt-get update -q >&2
# shellcheck disable=SC2086  # a list of package names
$as_root apt-get install -y -q --no-install-recommends $want >&2
