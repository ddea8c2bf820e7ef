"""One guest: QEMU, what the guest is told, and what it says.

Its output, errors and control lines come over three virtio ports, each a socket that QEMU inherits: nothing on this
machine has a name that another guest could take. QEMU dies with the process that started it, however that ends.
"""
import base64
import os
import re
import resource
import secrets
import shlex
import socket
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.realpath(__file__))))
APPEND = ("console=ttyS0 quiet panic=-1 oops=panic mitigations=off nokaslr audit=0 apparmor=0 rcupdate.rcu_expedited=1 "
          # Else a guest reads its time from an emulated device, at microseconds a read.
          "tsc=reliable no_timer_check random.trust_cpu=on")

# Without the features that promise fast `rep movsb`: emulated, it copies byte after byte, and a READ takes 1.7 times as
# long. Without the fifth level of page tables.
EMULATED_CPU = "max,-erms,-fsrm,-la57"


class Stream:
    """Bytes of the guest up to a token."""

    def __init__(self, token):
        self._token = token
        self._held = b""
        self.ended = False

    def feed(self, data):
        """What of `data` is the command's. Only what may be the token's beginning is held back."""
        if self.ended:
            return b""
        data = self._held + data
        end = data.find(self._token)
        if end >= 0:
            self.ended = True
            self._held = b""
            return data[:end]
        keep = next(size for size in range(min(len(data), len(self._token) - 1), -1, -1)
                    if data.endswith(self._token[:size]))
        self._held = data[len(data) - keep:]
        return data[:len(data) - keep]

    def rest(self):
        """What was held back, of a guest that is dead."""
        held, self._held = self._held, b""
        return held


class Machine:
    """options: those of tests/guest/run. link: a socket to the other guest."""

    def __init__(self, options, kernel, accelerator, index=0, link=None, probe=False):
        self.index = index
        self.folder = tempfile.TemporaryDirectory(prefix="verbena-guest-")
        self.token = secrets.token_hex(16).encode()
        # Port numbers are the guest's names of them: /dev/vport0p1 and so on.
        self.ports, inherited = {}, {}
        for name in ("output", "errors", "control"):
            self.ports[name], inherited[name] = socket.socketpair()
        self._write_settings(options, probe)
        command = self._qemu(options, kernel, accelerator, inherited, link)
        fds = [end.fileno() for end in inherited.values()] + ([link.fileno()] if link else [])
        self._log = open(self._path("qemu.log"), "wb")
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL"] + command, pass_fds=fds, stdout=self._log,
                                        stderr=self._log, stdin=subprocess.DEVNULL, start_new_session=True)
        for end in list(inherited.values()) + ([link] if link else []):
            end.close()

    def _path(self, name):
        return os.path.join(self.folder.name, name)

    def _write_settings(self, options, probe):
        size = os.get_terminal_size() if options.interactive else os.terminal_size((80, 24))
        settings = {
            "index": self.index, "count": options.guests, "nics": options.nics, "token": self.token.decode(),
            "probe": "yes" if probe else "", "interactive": "yes" if options.interactive else "",
            "rows": size.lines, "columns": size.columns, "tree": ROOT, "folder_of_command": os.getcwd(),
            # As many as here, of those that a kernel allows.
            "files": min(resource.getrlimit(resource.RLIMIT_NOFILE)[0] % (1 << 64), 1 << 20),
            "writable": " ".join(base64.b64encode(folder.encode()).decode() for folder in options.writable),
        }
        with open(self._path("settings"), "w") as file:
            file.writelines(f"{name}={shlex.quote(str(value))}\n" for name, value in settings.items())
        with open(self._path("command"), "w", errors="surrogateescape") as file:
            file.write(command_script(options))

    def _qemu(self, options, kernel, accelerator, inherited, link):
        command = ["qemu-system-x86_64", "-name", f"verbena-guest{self.index}", "-nodefaults", "-no-user-config",
                   "-no-reboot", "-display", "none", "-machine", "q35", "-smp", str(options.cpus), "-m", options.memory,
                   "-kernel", kernel.image, "-initrd", kernel.initramfs, "-append", APPEND,
                   "-serial", "file:" + self._path("console")]
        command += ["-accel", "kvm", "-cpu", "host"] if accelerator == "kvm" else [
            "-accel", "tcg,thread=multi", "-cpu", EMULATED_CPU]
        command += ["-device", "virtio-serial-pci,bus=pcie.0"]
        for number, (name, end) in enumerate(inherited.items(), 1):
            console = options.interactive and name == "output"
            device = "virtconsole" if console else "virtserialport"
            command += ["-chardev", f"socket,id={name},fd={end.fileno()}", "-device", f"{device},chardev={name},nr={number}"]
        for name in ("settings", "command"):
            command += ["-fw_cfg", f"name=opt/verbena/{name},file={self._path(name)}"]
        if options.numa:
            command += numa(options)
        # One hub, on which the other guest's is as well.
        for number in range(options.nics):
            net = f"hubport,id=net{number},hubid=0"
            bus = f",bus=port{number}" if options.numa else ""
            mac = f"52:54:00:77:{number:02x}:{self.index + 1:02x}"
            command += ["-netdev", net, "-device", f"virtio-net-pci,netdev=net{number},mac={mac},romfile={bus}"]
        if link:
            command += ["-netdev", f"socket,id=link,fd={link.fileno()}", "-netdev", "hubport,id=up,hubid=0,netdev=link"]
        command += share("root", "/", read_only=True)
        for number, folder in enumerate(options.writable):
            command += share(f"writable{number}", folder, read_only=False)
        return command

    def console(self):
        """What kernel and QEMU printed: from the kernel's first complaint on, or the end of it."""
        text = []
        for name in ("console", "qemu.log"):
            if os.path.exists(self._path(name)):
                with open(self._path(name), errors="replace") as file:
                    text += last_words(file.read())
        return text

    def kill(self):
        self.process.kill()
        self.process.wait()
        for port in self.ports.values():
            port.close()
        self._log.close()
        self.folder.cleanup()


def last_words(text, lines_max=60):
    lines = [line for line in text.replace("\r", "").splitlines() if "is not connected to host network" not in line]
    for start, line in enumerate(lines):
        if re.search(r"Kernel panic|BUG:|Oops|general protection|Out of memory", line):
            return lines[start:start + lines_max]
    return lines[-lines_max:]


def command_script(options):
    """Bash that becomes the command, with this process's folder and environment."""
    lines = []
    for name, value in os.environ.items():
        if name.isidentifier() and name not in ("PATH", "TMPDIR", "XDG_RUNTIME_DIR", "SHLVL", "_"):
            lines.append(f"export {name}={shlex.quote(value)}")
    lines.append(f"export PATH={shlex.quote(os.environ['PATH'])}")
    lines.append(f"cd {shlex.quote(os.getcwd())}")
    return "\n".join(lines + ["exec " + shlex.join(options.command)]) + "\n"


def share(tag, folder, read_only):
    path = folder.replace(",", ",,")
    mode = ",readonly=on" if read_only else ""
    return ["-fsdev", f"local,id={tag},path={path},security_model=none,multidevs=remap{mode}",
            "-device", f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0"]


def numa(options):
    """Two nodes, each with half of the CPUs and memory and a root port for an interface: port0, port1."""
    size, unit = int(options.memory[:-1]), options.memory[-1]
    size, unit = (size * 512, "M") if unit == "G" else (size // 2, unit)
    command, half = [], options.cpus // 2
    for node in range(2):
        cpus = f"{node * half}-{(node + 1) * half - 1}"
        command += ["-object", f"memory-backend-ram,id=memory{node},size={size}{unit}",
                    "-numa", f"node,nodeid={node},cpus={cpus},memdev=memory{node}",
                    # A host bridge tells the kernel its node; what is plugged below inherits it.
                    "-device", f"pxb-pcie,id=bridge{node},bus=pcie.0,bus_nr={64 * (node + 1)},numa_node={node}",
                    "-device", f"pcie-root-port,id=port{node},bus=bridge{node},chassis={node + 1}"]
    return command
