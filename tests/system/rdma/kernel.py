# SPDX-License-Identifier: Apache-2.0
"""The guest's kernel: Debian's package, fetched once and unpacked below the build directories.

Soft-RoCE (rdma_rxe) is a module of Debian's stock kernel, so nothing is compiled and nothing is
installed on this machine. What is in the cache is used as it is: a suite does not change its
kernel between two runs, and works without a network. For a newer one, remove the directory.
"""
import fcntl
import lzma
import os
import platform
import shutil
import stat
import subprocess
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = Path(os.environ.get("TERN_VM_CACHE", HERE.parents[2] / "build-test" / "vm-kernel"))
PACKAGE = os.environ.get("TERN_VM_KERNEL", "linux-image-amd64")
DOWNLOAD_LIMIT_S = 240

# Two thirds of the package are drivers of hardware that qemu does not give the guest.
UNWANTED = ["drivers/gpu", "drivers/media", "drivers/net/ethernet", "drivers/net/wireless",
            "drivers/staging", "drivers/iio", "drivers/usb", "drivers/scsi", "sound"]
# Modules that are needed to mount the root; the others are loaded from there.
BOOT_MODULES = ["virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_console"]


class Unavailable(Exception):
    """There is no kernel; the text is one line that says why."""


class Kernel:
    def __init__(self, root):
        self.root = root
        self.version = next((root / "lib/modules").iterdir()).name
        self.modules = root / "lib/modules" / self.version
        self.image = root / "boot" / "image"


def prepare():
    """Returns the kernel, which is fetched if this is the first time."""
    if platform.machine() != "x86_64":
        raise Unavailable(f"the guest is an x86_64 machine, this one is {platform.machine()}")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once: the second finds it done
        root = CACHE / PACKAGE
        if not root.exists():
            with tempfile.TemporaryDirectory(dir=CACHE, prefix="partial-") as scratch:
                unpack(fetch(Path(scratch)), Path(scratch) / "root")
                # The name tells that the folder is complete, so rename it last.
                os.rename(Path(scratch) / "root", root)
    return Kernel(root)


# ---- downloading the kernel's package ----------------------------------------------------


def apt(*command, cwd=None):
    """Runs a command; returns (whether it succeeded, its output, its last line on stderr)."""
    try:
        done = subprocess.run(command, cwd=cwd, text=True, capture_output=True,
                              env=dict(os.environ, LC_ALL="C"), timeout=DOWNLOAD_LIMIT_S)
    except FileNotFoundError:
        raise Unavailable(f"{command[0]} is not there: this is not a Debian system") from None
    except subprocess.TimeoutExpired:
        return False, "", f"nothing after {DOWNLOAD_LIMIT_S} s"
    complaints = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode == 0, done.stdout, complaints[-1] if complaints else "no reason given"


def image_package():
    """Returns the package with the image: linux-image-amd64 only depends on the present one."""
    good, out, _ = apt("apt-cache", "depends", PACKAGE)
    names = [line.split()[1] for line in out.splitlines() if "Depends:" in line]
    return next((n for n in names if n.startswith("linux-image-")), PACKAGE if good else None)


def fetch(directory):
    """The package's file. apt's lists may be absent (a fresh container has none) or older than
    the archive, which no longer has what they name: then root fetches them, once."""
    why = f"apt knows no package {PACKAGE}"
    for last_try in (False, True):
        package = image_package()
        if package:
            good, _, why = apt("apt-get", "download", "-q", "-o", "APT::Sandbox::User=root",
                               package, cwd=directory)
            if good:
                return next(directory.glob("*.deb"))
            why = f"cannot download {package}: {why}"
        if not last_try and os.geteuid() == 0:
            apt("apt-get", "update", "-q")  # fails if one of many sources does: the next try to download decides
    raise Unavailable(why)


# ---- unpacking ---------------------------------------------------------------------------


def unpack(package, root):
    try:
        subprocess.run(["dpkg", "-x", package, root], check=True, capture_output=True)
        package.unlink()
        version = next((root / "lib/modules").iterdir()).name
        for directory in UNWANTED:
            shutil.rmtree(root / "lib/modules" / version / "kernel" / directory,
                          ignore_errors=True)
        subprocess.run(["depmod", "-b", root, version], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError, StopIteration) as error:
        raise Unavailable(f"cannot unpack {package.name}: {error}") from None
    compressed = next((root / "boot").glob("vmlinuz-*"))
    (root / "boot" / "image").write_bytes(uncompressed(compressed.read_bytes()))


def uncompressed(image):
    """Returns the ELF file inside the image. qemu boots it as well, and the decompression would
    take seconds on an emulated machine. An image of an unknown format is returned as it is."""
    for magic, decompressor in ((b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor()),
                                (b"\x1f\x8b\x08", lambda: zlib.decompressobj(31))):
        at = image.find(magic)
        while at >= 0:
            try:
                elf = decompressor().decompress(image[at:])
                if elf.startswith(b"\x7fELF"):
                    return elf
            except (lzma.LZMAError, zlib.error):
                pass  # these bytes are equal to the magic by chance
            at = image.find(magic, at + 1)
    return image


# ---- the first root ----------------------------------------------------------------------


def boot_modules(kernel):
    """Files of BOOT_MODULES and of what they need, each after what it needs. Those that are
    built in have no file."""
    needs = {}
    for line in (kernel.modules / "modules.dep").read_text().splitlines():
        path, _, others = line.partition(":")
        needs[Path(path).name.split(".")[0].replace("-", "_")] = (path, others.split())
    paths = []
    for path, others in (needs[m] for m in BOOT_MODULES if m in needs):
        paths += [p for p in (*reversed(others), path) if p not in paths]
    return [kernel.modules / p for p in paths]


def module_bytes(path):
    return lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()


def write_initramfs(kernel, path):
    """An archive (cpio, "newc") of a static busybox, the modules and initramfs.sh as /init."""
    busybox = shutil.which("busybox")
    if not busybox:
        raise Unavailable("busybox is not there (package busybox-static)")
    modules = boot_modules(kernel)
    names = [m.name.removesuffix(".xz") for m in modules]
    with open(path, "wb") as out:
        number = 0

        def entry(name, mode, data=b""):
            nonlocal number
            number += 1
            name = name.encode() + b"\0"
            # magic, inode, mode, uid, gid, links, time, size, 4 of devices, name's size, sum
            fields = (number, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name), 0)
            head = b"070701" + b"".join(b"%08x" % f for f in fields) + name
            for part in (head, data):
                out.write(part + bytes(-len(part) % 4))

        for name in ("bin", "modules", "proc", "sys", "dev", "host", "own", "guest"):
            entry(name, stat.S_IFDIR | 0o755)
        entry("bin/busybox", stat.S_IFREG | 0o755, Path(busybox).read_bytes())
        entry("bin/sh", stat.S_IFLNK | 0o777, b"busybox")
        entry("init", stat.S_IFREG | 0o755, (HERE / "initramfs.sh").read_bytes())
        entry("modules/order", stat.S_IFREG | 0o644, "\n".join(names).encode())
        for name, module in zip(names, modules):
            entry(f"modules/{name}", stat.S_IFREG | 0o644, module_bytes(module))
        entry("TRAILER!!!", 0)
