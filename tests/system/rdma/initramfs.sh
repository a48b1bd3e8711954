#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# The guest's first process, on the initramfs (see kernel.py). The guest's root is the host's /,
# read-only over 9p, below a tmpfs: every program of the host is there at its path, and what
# the guest writes is gone when it ends. Then guest.sh goes on, in that root.
box=/bin/busybox

say() {
  echo "vm: $*" >/dev/console
}

$box mount -t proc proc /proc
$box mount -t sysfs sysfs /sys
$box mount -t devtmpfs devtmpfs /dev
for module in $($box cat /modules/order); do
  $box insmod "/modules/$module" || say "$module does not load"
done

over9p=trans=virtio,version=9p2000.L,msize=512000
# Nobody is to change the host's files meanwhile, so the guest may cache what it has read.
$box mount -t 9p -o $over9p,ro,cache=loose host /host || say "the host's root does not mount"
$box mount -t tmpfs -o mode=755 tmpfs /own
$box mkdir /own/upper /own/work
$box mount -t overlay -o lowerdir=/host,upperdir=/own/upper,workdir=/own/work overlay /guest ||
  say "the overlay does not mount"

$box mount -t proc proc /guest/proc
$box mount -t sysfs sysfs /guest/sys
$box mount -t devtmpfs devtmpfs /guest/dev
for name in fd:fd stdin:fd/0 stdout:fd/1 stderr:fd/2; do # there is no udev to make these links
  $box ln -s "/proc/self/${name#*:}" "/guest/dev/${name%:*}"
done
$box mkdir -p /guest/dev/pts /guest/dev/shm /guest/dev/hugepages
$box mount -t devpts devpts /guest/dev/pts
$box mount -t tmpfs -o mode=1777 tmpfs /guest/dev/shm
$box mount -t hugetlbfs hugetlbfs /guest/dev/hugepages
$box mount -t tmpfs -o mode=755 tmpfs /guest/run
$box mkdir /guest/run/vm
# Both sides write to this folder, so nothing in it may be cached.
$box mount -t 9p -o $over9p,rw,cache=none run /guest/run/vm || say "the run's files do not mount"
exec $box chroot /guest /bin/bash /run/vm/guest.sh
