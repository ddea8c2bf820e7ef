"""What a guest boots: Debian's kernel of a series ("6.1"), unpacked and cached, never installed, and an initramfs.

Everything lies in one folder, which several checkouts may share (VERBENA_GUEST_CACHE); whoever changes it holds its lock.
A kernel that is there is used, however old: remove the folder to get the newest.
"""
import contextlib
import fcntl
import glob
import gzip
import hashlib
import lzma
import os
import re
import shutil
import subprocess
import tempfile

HERE = os.path.dirname(os.path.realpath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
CACHE = os.environ.get("VERBENA_GUEST_CACHE") or os.path.join(ROOT, "build", "guest")

# What init loads, with what these depend on. crc32_generic: soft-RoCE asks for "crc32" and fails without.
MODULES = ("virtio_pci virtio_console qemu_fw_cfg virtio_net 9pnet_virtio 9p crc32_generic rdma_rxe ib_uverbs rdma_ucm "
           "veth dummy sch_netem").split()
TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "modprobe": "kmod", "depmod": "kmod",
         "rdma": "iproute2", "dpkg": "dpkg", "setpriv": "util-linux"}


class CannotRun(Exception):
    """No guest can be had on this machine, and why."""


def check_tools():
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    os.environ["PATH"] = path
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        raise CannotRun(f"not installed: {' '.join(missing)} (cmake/setup guest does it)")
    if os.uname().machine != "x86_64":
        raise CannotRun(f"it is made for x86_64, and this is {os.uname().machine}")
    with open(shutil.which("busybox"), "rb") as program:
        if b"/ld-linux" in program.read(4096):
            raise CannotRun("busybox needs shared libraries: install busybox-static")


@contextlib.contextmanager
def cache_lock():
    try:
        os.makedirs(CACHE, exist_ok=True)
        lock = open(os.path.join(CACHE, "lock"), "w")
    except OSError as error:
        raise CannotRun(f"its cache cannot be written: {error}; VERBENA_GUEST_CACHE names another") from error
    with lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


class Kernel:
    """Paths of one that is unpacked: `image` for QEMU's -kernel, `initramfs`; its `release`, as uname -r says."""

    def __init__(self, series):
        with cache_lock():
            self.folder = os.path.join(CACHE, f"linux-{series}")
            if not os.path.isdir(self.folder):
                unpack_kernel(series, self.folder)
            self.release = os.listdir(os.path.join(self.folder, "lib/modules"))[0]
            self.image = os.path.join(self.folder, "vmlinux")
            if not os.path.exists(self.image):
                self.image = glob.glob(os.path.join(self.folder, "boot/vmlinuz-*"))[0]
            self.initramfs = self._initramfs()

    def _initramfs(self):
        """Anew when one of its inputs is."""
        with open(os.path.join(HERE, "init"), "rb") as file:
            init = file.read()
        with open(shutil.which("busybox"), "rb") as file:
            busybox = file.read()
        key = hashlib.sha256(b"".join((init, busybox, self.release.encode(), " ".join(MODULES).encode())))
        path = os.path.join(self.folder, f"initramfs-{key.hexdigest()[:16]}")
        if not os.path.exists(path):
            modules = self._modules()
            order = "".join(name + "\n" for name, _ in modules).encode()
            files = [("init", init), ("bin/busybox", busybox), ("modules/order", order)]
            files += [("modules/" + name, content) for name, content in modules]
            with open(path + ".new", "wb") as file:
                file.write(archive(files))
            os.rename(path + ".new", path)
        return path

    def _modules(self):
        """Names and contents, each after those that it needs."""
        modules = {}
        for module in MODULES:
            shown = subprocess.run(["modprobe", "-C", "/dev/null", "-d", self.folder, "-S", self.release, "--show-depends", module],
                                   capture_output=True, text=True)
            if shown.returncode != 0:
                raise CannotRun(f"Linux {self.release} has no module {module}: {shown.stderr.strip()}")
            for path in re.findall(r"^insmod (\S+)", shown.stdout, re.M):
                name = re.sub(r"\.xz$", "", os.path.basename(path))
                if name not in modules:
                    with (lzma.open if path.endswith(".xz") else open)(path, "rb") as file:
                        modules[name] = file.read()
        return list(modules.items())


def archive(files):
    """A cpio archive ("newc", not compressed: QEMU hands it over faster than a guest unpacks it)."""
    entries = []
    folders = sorted({os.path.dirname(name) for name, _ in files} - {""})
    for name, mode, content in ([(folder, 0o040755, b"") for folder in folders] +
                                [(name, 0o100755, content) for name, content in files] + [("TRAILER!!!", 0, b"")]):
        encoded = name.encode() + b"\0"
        fields = [len(entries) + 1, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(encoded), 0]
        entry = b"070701" + b"".join(b"%08X" % field for field in fields) + encoded
        entry += b"\0" * (-len(entry) % 4) + content
        entries.append(entry + b"\0" * (-len(entry) % 4))
    return b"".join(entries)


def apt(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, **options)


def newest_package(series):
    """The plain flavour's (not cloud, rt, unsigned, debug) newest package in apt's lists, or None."""
    names = apt("apt-cache", "pkgnames", f"linux-image-{series}.").stdout.split()
    plain = [name for name in names if re.fullmatch(r"linux-image-[0-9.]+(\+deb\d+)?(-\d+)?-amd64", name)]
    return max(plain, key=lambda name: [int(number) for number in re.findall(r"\d+", name)], default=None)


def update_lists():
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    if not as_root or shutil.which("sudo"):
        apt(*as_root, "apt-get", "-q", "update")


def download(series, folder):
    """The .deb's path. With lists of packages that are missing or old, they are fetched anew."""
    if not shutil.which("apt-get"):
        raise CannotRun("it takes its kernel from Debian's packages, and there is no apt-get here")
    for attempt in range(2):
        package = newest_package(series)
        if package:
            result = apt("apt-get", "-q", "download", package, cwd=folder)
            if result.returncode == 0:
                return glob.glob(os.path.join(folder, "*.deb"))[0]
        if attempt == 0:
            update_lists()
    if not package:
        others = sorted({match[1] for match in re.finditer(
            r"^linux-image-(\d+\.\d+)\.\S*-amd64$", apt("apt-cache", "pkgnames", "linux-image-").stdout, re.M)})
        raise CannotRun(f"apt knows no package linux-image-{series}.*-amd64 (series it knows: {' '.join(others) or 'none'})")
    raise CannotRun(f"{package} cannot be downloaded: {result.stderr.strip()}")


def unpack_kernel(series, folder):
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="new-") as scratch:
        deb = download(series, scratch)
        tree = os.path.join(scratch, "tree")
        subprocess.run(["dpkg", "-x", deb, tree], check=True)
        # Debian 13 has its modules in /usr/lib.
        if not os.path.exists(os.path.join(tree, "lib")):
            os.symlink("usr/lib", os.path.join(tree, "lib"))
        release = os.listdir(os.path.join(tree, "lib/modules"))[0]
        if not glob.glob(os.path.join(tree, "lib/modules", release, "kernel/drivers/infiniband/sw/rxe/rdma_rxe.ko*")):
            raise CannotRun(f"{os.path.basename(deb)} has no soft-RoCE (rdma_rxe)")
        subprocess.run(["depmod", "-b", tree, release], check=True)
        uncompressed = vmlinux(glob.glob(os.path.join(tree, "boot/vmlinuz-*"))[0])
        if uncompressed:
            with open(os.path.join(tree, "vmlinux"), "wb") as file:
                file.write(uncompressed)
        os.rename(tree, folder)


def vmlinux(image):
    """The kernel inside a bzImage, which QEMU can start as well (PVH): an emulated CPU takes 4 s to unpack it. None if it
    is packed in a way not known here."""
    with open(image, "rb") as file:
        packed = file.read()
    for magic, unpack in ((b"\xfd7zXZ\0", lambda data: lzma.LZMADecompressor().decompress(data)),
                          (b"\x28\xb5\x2f\xfd", unpack_zstd), (b"\x1f\x8b\x08", gzip.decompress)):
        start = packed.find(magic)
        while start >= 0:
            with contextlib.suppress(lzma.LZMAError, OSError, EOFError):
                content = unpack(packed[start:])
                if content[:4] == b"\x7fELF":
                    return content
            start = packed.find(magic, start + 1)
    return None


def unpack_zstd(data):
    # It complains about what follows the packed kernel.
    return subprocess.run(["zstd", "-dcq"], input=data, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
