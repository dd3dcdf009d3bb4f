#!/bin/sh
# Makes the guests that people have, which vmeter's own is not: Debian with GRUB and systemd
# on a disk that SeaBIOS and OVMF both boot, its kernel and initrd by themselves, and a
# busybox guest whose syslogd prints the kernel's old log on the console.
#   guests.sh [FOLDER]    default: $XDG_CACHE_HOME/vmeter/guests
# Needs root (debootstrap), and Debian's debootstrap, grub-pc-bin, grub-efi-amd64-bin,
# grub-common, mtools, e2fsprogs, busybox-static, cpio; OVMF is package ovmf. Nothing is
# mounted. What is there already is not made again.
#
# In FOLDER afterwards: debian.img (raw), vmlinuz, initrd.img, busybox.cpio.gz. Planted in
# them, each with the guest's own clock before and after on the console ("planted NAME begin
# SECONDS"): GRUB's time-out, an initrd script that sleeps, a unit that sleeps, one that
# computes, one that waits for the first, one that is slow to stop. With `planted.only=NAME` on
# its command line only that one does anything, with `planted.seconds=N` what sleeps sleeps so
# long; GRUB's time-out is 40 s where QEMU is given `-smbios type=1,version=40`. With
# `planted.analyze` the guest prints what `systemd-analyze` says of its boot, with
# `planted.poweroff` it ends by itself.
set -eu

folder=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/vmeter/guests}
# Raised when what is made changes.
version=5
suite=bookworm
if [ "$(cat "$folder/version" 2>/dev/null)" = $version ]; then exit 0; fi

missing=
for tool in debootstrap grub-mkimage mcopy mformat mke2fs busybox cpio sfdisk; do
    command -v $tool >/dev/null 2>&1 || missing="$missing $tool"
done
for dir in /usr/lib/grub/i386-pc /usr/lib/grub/x86_64-efi; do
    [ -d $dir ] || missing="$missing $dir"
done
if [ -n "$missing" ] || [ "$(id -u)" != 0 ]; then
    echo "guests: needs root and$missing: apt-get install debootstrap grub-pc-bin" \
        "grub-efi-amd64-bin grub-common ovmf mtools e2fsprogs busybox-static cpio fdisk" >&2
    exit 3
fi

mkdir -p "$folder"
work=$(mktemp -d "$folder/work.XXXXXX")
trap 'rm -rf "$work"' EXIT
root=$work/root
packages=systemd,systemd-sysv,udev,dbus,linux-image-cloud-amd64,initramfs-tools,zstd,kmod
packages=$packages,cron,rsyslog,systemd-timesyncd,ifupdown,iproute2,openssh-server,e2fsprogs

debootstrap --variant=minbase --include="$packages" $suite "$root" >"$work/debootstrap.log" 2>&1 || {
    tail -5 "$work/debootstrap.log" >&2
    echo "guests: debootstrap failed; its log was $work/debootstrap.log" >&2
    exit 3
}

# --- what is planted ---------------------------------------------------------------------
cat >"$work/planted" <<'END'
#!/bin/sh
# planted NAME COMMAND…: the guest's clock right before and after it, on the console.
name=$1; shift
read -r words </proc/cmdline
case " $words " in
*" planted.only=$name "*) ;;
*" planted.only="*) exit 0 ;;
esac
case " $words " in
*" planted.seconds="*)
    seconds=${words#*planted.seconds=}
    [ "$1" != sleep ] || set -- sleep "${seconds%% *}" ;;
esac
echo "planted $name begins" >/dev/console
read -r begin _ </proc/uptime
"$@"
read -r end _ </proc/uptime
printf 'planted %s begin %s\nplanted %s end %s\n' "$name" "$begin" "$name" "$end" >/dev/console
END
install -m 755 "$work/planted" "$root/usr/local/bin/planted"
# An oracle: what systemd itself says of the boot, when that is over.
cat >"$root/usr/local/bin/planted-analyze" <<'END'
#!/bin/sh
until systemd-analyze time >/dev/null 2>&1; do sleep 0.5; done
say() {
    echo "planted oracle $1 begin"
    shift
    "$@" --no-pager
    echo "planted oracle end"
}
{
    say blame systemd-analyze blame
    say critical-chain systemd-analyze critical-chain serial-getty@ttyS0.service
    say default-chain systemd-analyze critical-chain
} >/run/planted-oracle 2>&1
cat /run/planted-oracle >/dev/console
case "$(cat /proc/cmdline)" in *planted.poweroff*) systemctl --no-block poweroff ;; esac
END
chmod 755 "$root/usr/local/bin/planted-analyze"
cat >"$root/usr/local/bin/burn" <<'END'
#!/bin/sh
i=0; while [ $i -lt 60000 ]; do i=$((i + 1)); done
END
chmod 755 "$root/usr/local/bin/burn"
unit() { # name, lines of [Unit], lines of [Service]
    printf '[Unit]\nDescription=Planted %s\n%s\n[Service]\nType=oneshot\nRemainAfterExit=yes\n%s\n[Install]\nWantedBy=multi-user.target\n' \
        "$1" "$2" "$3" >"$root/etc/systemd/system/planted-$1.service"
    ln -sf "/etc/systemd/system/planted-$1.service" \
        "$root/etc/systemd/system/multi-user.target.wants/planted-$1.service"
}
mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
unit sleep "Before=serial-getty@ttyS0.service" "ExecStart=/usr/local/bin/planted sleep sleep 1.5"
unit burn "Before=serial-getty@ttyS0.service" "ExecStart=/usr/local/bin/planted burn burn"
unit after "Before=serial-getty@ttyS0.service
After=planted-sleep.service" "ExecStart=/usr/local/bin/planted after sleep 2"
unit stop "" "ExecStart=/bin/true
ExecStop=/usr/local/bin/planted stop sleep 1.2"
# It is no part of the boot that it waits for.
printf '[Unit]\nDescription=What systemd says of this boot\nConditionKernelCommandLine=planted.analyze\nDefaultDependencies=no\nConflicts=shutdown.target\nAfter=sysinit.target\n[Service]\nExecStart=/usr/local/bin/planted-analyze\n[Install]\nWantedBy=multi-user.target\n' \
    >"$root/etc/systemd/system/planted-analyze.service"
ln -sf /etc/systemd/system/planted-analyze.service \
    "$root/etc/systemd/system/multi-user.target.wants/planted-analyze.service"
# The guest ends by itself where its command line says so.
printf '[Unit]\nDescription=End where asked\nConditionKernelCommandLine=planted.poweroff\nConditionKernelCommandLine=!planted.analyze\nAfter=multi-user.target serial-getty@ttyS0.service\n[Service]\nType=oneshot\nExecStart=/bin/systemctl --no-block poweroff\n[Install]\nWantedBy=graphical.target\n' \
    >"$root/etc/systemd/system/planted-poweroff.service"
mkdir -p "$root/etc/systemd/system/graphical.target.wants"
ln -sf /etc/systemd/system/planted-poweroff.service \
    "$root/etc/systemd/system/graphical.target.wants/planted-poweroff.service"
{
    echo '#!/bin/sh'
    echo '[ "$1" = prereqs ] && exit 0'
    echo 'set -- initrd sleep 0.7'
    sed 1d "$work/planted"
} >"$root/etc/initramfs-tools/scripts/local-premount/planted"
chmod 755 "$root/etc/initramfs-tools/scripts/local-premount/planted"
sed -i 's/^MODULES=.*/MODULES=most/; s/^COMPRESS=.*/COMPRESS=zstd/' "$root/etc/initramfs-tools/initramfs.conf"
printf '/dev/vda2 / ext4 errors=remount-ro 0 1\n' >"$root/etc/fstab"
printf 'auto lo\niface lo inet loopback\n' >"$root/etc/network/interfaces"
echo planted >"$root/etc/hostname"
# A host with a load of 25 takes longer than systemd waits for the serial line's device.
mkdir -p "$root/etc/systemd/system.conf.d"
printf '[Manager]\nDefaultTimeoutStartSec=900s\nDefaultDeviceTimeoutSec=900s\n' \
    >"$root/etc/systemd/system.conf.d/busy.conf"
chroot "$root" passwd -q -d root
chroot "$root" update-initramfs -u >>"$work/debootstrap.log" 2>&1

kernel=$(cd "$root/boot" && ls vmlinuz-* | tail -1)
release=${kernel#vmlinuz-}
cp "$root/boot/$kernel" "$work/vmlinuz"
cp "$root/boot/initrd.img-$release" "$work/initrd.img"

# --- GRUB, as its own update-grub writes the entries --------------------------------------
mkdir -p "$root/boot/grub"
cat >"$root/boot/grub/grub.cfg" <<END
serial --unit=0 --speed=115200
if [ "\$grub_platform" = pc ]; then terminal_input serial; terminal_output serial; fi
set timeout=1
smbios --type 1 --get-string 6 --set planted
if [ "\$planted" = 40 ]; then set timeout=40; fi
menuentry 'Debian GNU/Linux' {
    echo 'Loading Linux $release ...'
    linux /boot/$kernel root=/dev/vda2 ro console=ttyS0 no_timer_check
    echo 'Loading initial ramdisk ...'
    initrd /boot/initrd.img-$release
}
menuentry 'Debian GNU/Linux, traced' {
    echo 'Loading Linux $release ...'
    linux /boot/$kernel root=/dev/vda2 ro console=ttyS0 no_timer_check trace_event=initcall:*,module:module_load,sched:sched_process_exec,sched:sched_process_exit,sched:sched_process_wait,task:task_newtask,cgroup:cgroup_attach_task,printk:console trace_clock=x86-tsc trace_buf_size=2M systemd.log_target=kmsg systemd.show_status=1 printk.devkmsg=on
    echo 'Loading initial ramdisk ...'
    initrd /boot/initrd.img-$release
}
END
printf 'search --set=root --file /boot/grub/grub.cfg\nset prefix=($root)/boot/grub\nconfigfile /boot/grub/grub.cfg\n' >"$work/early.cfg"
modules="part_msdos smbios ext2 fat normal configfile search search_fs_file linux echo serial terminal sleep test minicmd halt reboot"
grub-mkimage -O i386-pc -d /usr/lib/grub/i386-pc -p /boot/grub -c "$work/early.cfg" \
    -o "$work/core.img" biosdisk $modules
grub-mkimage -O x86_64-efi -d /usr/lib/grub/x86_64-efi -p /boot/grub -c "$work/early.cfg" \
    -o "$work/bootx64.efi" $modules

# --- the disk: 1 MiB for GRUB's core, 64 MiB EFI system partition, the root ---------------
rm -rf "$root/var/cache/apt/archives"/*.deb "$root/var/lib/apt/lists"/* "$root/usr/share/doc" \
    "$root/usr/share/man" "$root/usr/share/locale"
truncate -s 64M "$work/esp.img"
mformat -i "$work/esp.img" -F ::
mmd -i "$work/esp.img" ::/EFI ::/EFI/BOOT
mcopy -i "$work/esp.img" "$work/bootx64.efi" ::/EFI/BOOT/BOOTX64.EFI
mke2fs -q -t ext4 -d "$root" "$work/root.img" 1400M
disk=$work/debian.img
truncate -s $((1 + 64 + 1400))M "$disk"
printf 'label: dos\nstart=1MiB, size=64MiB, type=ef\nstart=65MiB, size=1400MiB, type=83, bootable\n' |
    sfdisk -q "$disk"
dd if="$work/esp.img" of="$disk" bs=1M seek=1 conv=notrunc,sparse status=none
dd if="$work/root.img" of="$disk" bs=1M seek=65 conv=notrunc,sparse status=none
# boot.img looks for the core in sector 1, and the core's first sector for the rest in 2.
dd if=/usr/lib/grub/i386-pc/boot.img of="$disk" bs=440 count=1 conv=notrunc status=none
dd if="$work/core.img" of="$disk" bs=512 seek=1 conv=notrunc status=none

# --- busybox -----------------------------------------------------------------------------
bb=$work/busybox
mkdir -p "$bb/bin" "$bb/etc/init.d" "$bb/proc" "$bb/sys" "$bb/dev" "$bb/tmp" "$bb/var/log"
cp "$(command -v busybox)" "$bb/bin/busybox"
for applet in sh init mount sleep cut echo klogd syslogd poweroff cat ifconfig; do
    ln -sf busybox "$bb/bin/$applet"
done
ln -sf bin/busybox "$bb/init"
cat >"$bb/etc/inittab" <<'END'
::sysinit:/etc/init.d/rcS
ttyS0::once:/etc/prompt
::shutdown:/bin/echo rc: going down
END
cat >"$bb/etc/prompt" <<'END'
#!/bin/sh
printf 'alpine-like login: '
case "$(cat /proc/cmdline)" in *planted.poweroff*) sleep 0.3; poweroff;; esac
sleep 1000
END
cat >"$bb/etc/init.d/rcS" <<'END'
#!/bin/sh
PATH=/bin
mount -t proc proc /proc; mount -t sysfs sysfs /sys; mount -t devtmpfs dev /dev
say() { read -r now _ </proc/uptime; echo "rc: $1 $now"; }
say S01net; ifconfig lo 127.0.0.1 up
say S02log
case "$(cat /proc/cmdline)" in *planted.klogd*)
    syslogd -O /dev/console
    klogd -c 1
    sleep 0.2 ;;
esac
say S03sleep
read -r now _ </proc/uptime; echo "planted sleep begin $now"; sleep 0.7
read -r now _ </proc/uptime; echo "planted sleep end $now"
say S04cpu; i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done
say S05app; sleep 0.1
say done
END
chmod 755 "$bb/etc/init.d/rcS" "$bb/etc/prompt"
(cd "$bb" && find . | cpio -o -H newc -R 0:0 2>/dev/null | gzip -1) >"$work/busybox.cpio.gz"

for made in debian.img vmlinuz initrd.img busybox.cpio.gz; do mv "$work/$made" "$folder/$made"; done
echo "$release" >"$folder/release"
echo $version >"$folder/version"
