#!/bin/sh
# Makes guests whose init is not systemd, out of Debian's packages: OpenRC (under sysvinit's
# init), runit, and sysvinit's own rc.
#   guests-rc.sh [FOLDER]    default: $XDG_CACHE_HOME/vmeter/guests
# Needs root, debootstrap and e2fsprogs; boot them with the kernel and initrd that guests.sh
# makes in the same folder, and root=/dev/vda. What is there already is not made again.
#
# In FOLDER afterwards: openrc.img, runit.img, sysvinit.img (raw, no partitions). Planted in each
# is a service that sleeps, with the guest's own clock before and after on the console.
set -eu

folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/vmeter/guests}
# Raised when what is made changes.
version=1
suite=bookworm
if [ "$(cat "$folder/version-rc" 2>/dev/null)" = $version ]; then exit 0; fi
for tool in debootstrap mke2fs; do
    command -v $tool >/dev/null 2>&1 && [ "$(id -u)" = 0 ] || {
        echo "guests-rc: needs root and $tool: apt-get install debootstrap e2fsprogs" >&2
        exit 3
    }
done

mkdir -p "$folder"
work=$(mktemp -d "$folder/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
base=$work/base
packages=udev,kmod,procps,netbase,ifupdown,iproute2,cron,rsyslog,dbus,util-linux,e2fsprogs
debootstrap --variant=minbase --include="$packages" $suite "$base" >"$work/log" 2>&1 || {
    tail -5 "$work/log" >&2
    exit 3
}
printf '#!/bin/sh\nexit 101\n' >"$base/usr/sbin/policy-rc.d"
chmod 755 "$base/usr/sbin/policy-rc.d"
printf '/dev/vda / ext4 errors=remount-ro 0 1\n' >"$base/etc/fstab"
printf 'auto lo\niface lo inet loopback\n' >"$base/etc/network/interfaces"
chroot "$base" passwd -q -d root
cat >"$base/usr/local/bin/planted" <<'END'
#!/bin/sh
# planted NAME COMMAND…: the guest's clock right before and after it, on the console.
name=$1; shift
echo "planted $name begins" >/dev/console
read -r begin _ </proc/uptime
"$@"
read -r end _ </proc/uptime
printf 'planted %s begin %s\nplanted %s end %s\n' "$name" "$begin" "$name" "$end" >/dev/console
END
chmod 755 "$base/usr/local/bin/planted"

make() { # name, packages
    root=$work/$1
    [ ! -f "$folder/$1.img" ] || return 0
    cp -a "$base" "$root"
    echo "$1" >"$root/etc/hostname"
    # shellcheck disable=SC2086 # a list
    chroot "$root" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -qy --no-install-recommends $2 >>"$work/log" 2>&1 || {
        tail -20 "$work/log" >&2
        echo "guests-rc: $1 could not be installed" >&2
        exit 3
    }
    plant "$1"
    rm -rf "$root/usr/sbin/policy-rc.d" "$root/var/cache/apt/archives"/*.deb \
        "$root/var/lib/apt/lists"/* "$root/usr/share/doc" "$root/usr/share/man" \
        "$root/usr/share/locale"
    mke2fs -q -t ext4 -d "$root" "$work/$1.img" 700M
    mv "$work/$1.img" "$folder/$1.img"
    rm -rf "$root"
}

# A getty on the serial line, and a service that sleeps.
plant() {
    if [ -f "$root/etc/inittab" ]; then
        echo 'T0:2345:respawn:/sbin/agetty -L ttyS0 115200 vt100' >>"$root/etc/inittab"
    fi
    case $1 in
    openrc)
        cat >"$root/etc/init.d/planted-sleep" <<'END'
#!/sbin/openrc-run
description="Planted sleep"
depend() { after networking; }
start() {
    ebegin "Starting planted sleep"
    /usr/local/bin/planted sleep sleep 3
    eend $?
}
END
        chmod 755 "$root/etc/init.d/planted-sleep"
        ln -sf /etc/init.d/planted-sleep "$root/etc/runlevels/default/planted-sleep"
        ;;
    sysvinit | runit)
        cat >"$root/etc/init.d/planted-sleep" <<'END'
#!/bin/sh
### BEGIN INIT INFO
# Provides: planted-sleep
# Required-Start: $local_fs
# Required-Stop:
# Default-Start: 2 3 4 5
# Default-Stop:
# Short-Description: Planted sleep
### END INIT INFO
. /lib/lsb/init-functions
case $1 in
start)
    log_daemon_msg "Starting planted sleep" "planted-sleep"
    /usr/local/bin/planted sleep sleep 3
    log_end_msg 0 ;;
esac
END
        chmod 755 "$root/etc/init.d/planted-sleep"
        chroot "$root" update-rc.d planted-sleep defaults >>"$work/log" 2>&1
        ;;
    esac
    if [ "$1" = runit ]; then
        mkdir -p "$root/etc/sv/getty-ttyS0"
        printf '#!/bin/sh\nexec /sbin/agetty -L ttyS0 115200 vt100\n' >"$root/etc/sv/getty-ttyS0/run"
        chmod 755 "$root/etc/sv/getty-ttyS0/run"
        chroot "$root" sh -c 'mkdir -p "$(readlink -m /etc/service)" &&
            ln -sfn /etc/sv/getty-ttyS0 /etc/service/getty-ttyS0'
    fi
}

make openrc "sysvinit-core openrc"
make runit "runit-init"
make sysvinit "sysvinit-core sysv-rc"
echo $version >"$folder/version-rc"
