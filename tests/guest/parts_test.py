"""Parts of tests/guest/run that can be tested without a boot."""
import importlib.machinery
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
import kernel
import machine

loader = importlib.machinery.SourceFileLoader("run", os.path.join(os.path.dirname(os.path.realpath(__file__)), "run"))
run = importlib.util.module_from_spec(importlib.util.spec_from_loader("run", loader))
loader.exec_module(run)


class StreamTest(unittest.TestCase):
    TOKEN = b"<end>"

    def received(self, *pieces):
        stream = machine.Stream(self.TOKEN)
        return b"".join(stream.feed(piece) for piece in pieces), stream

    def test_the_token_ends_it_however_it_is_cut(self):
        for text in (b"", b"text\n", b"<en", b"<end<e", b"<<<<"):
            whole = text + self.TOKEN + b"later"
            for cut in range(len(whole) + 1):
                for second in range(cut, len(whole) + 1):
                    got, stream = self.received(whole[:cut], whole[cut:second], whole[second:])
                    self.assertEqual(got, text)
                    self.assertTrue(stream.ended)

    def test_nothing_is_held_back_but_a_beginning_of_the_token(self):
        got, stream = self.received(b"prompt$ ")
        self.assertEqual((got, stream.ended, stream.rest()), (b"prompt$ ", False, b""))
        got, stream = self.received(b"text <en")
        self.assertEqual((got, stream.rest()), (b"text ", b"<en"))


class CommandTest(unittest.TestCase):
    def test_arguments_folder_and_environment_arrive_as_they_are(self):
        os.environ["VERBENA_ODD"] = "a  'b\" $c\n`d`"
        os.environ["no-name"] = "1"
        arguments = ["a  b", "$c", "", "'", '"', "\\", "*"]
        options = types.SimpleNamespace(command=["bash", "-c", r'printf "%s|" "$@" "$VERBENA_ODD" "$PWD"', "_"] + arguments)
        with tempfile.NamedTemporaryFile("w") as script:
            script.write(machine.command_script(options))
            script.flush()
            output = subprocess.run(["bash", script.name], cwd="/", capture_output=True, text=True, check=True).stdout
        self.assertEqual(output.split("|"), arguments + [os.environ["VERBENA_ODD"], os.getcwd(), ""])


class FakeMachine:
    """A guest that has said all that it will say, up to its death or its end."""

    token = b"<end>"

    def __init__(self, index, control, output=b"", dies=False):
        self.index = index
        self.ports = {}
        self.ends = {}
        for name in ("output", "errors", "control"):
            self.ports[name], self.ends[name] = socket.socketpair()
        self.ends["control"].sendall(control)
        self.ends["output"].sendall(output + (b"" if dies else self.token))
        if not dies:
            self.ends["errors"].sendall(self.token)
        for end in self.ends.values():
            if dies:
                end.shutdown(socket.SHUT_WR)

    def console(self):
        return ["its last words"]


class SuperviseTest(unittest.TestCase):
    def supervised(self, *machines, **options):
        """Exit code, and what was printed: on standard output, by the tool."""
        guests = [run.Watched(machine, b"guest%d: " % machine.index if len(machines) > 1 else b"") for machine in machines]
        options = types.SimpleNamespace(**{"timeout": 5, "expendable": False, **options})
        said, printed = [], []
        run.say = said.append
        run.show_console = lambda guest: said.append(guest.machine.console()[0])
        for guest in guests:
            guest._write = lambda name, data: printed.append(data)
        code = run.supervise(guests, options, None)
        for machine in machines:
            for port in [*machine.ports.values(), *machine.ends.values()]:
                port.close()
        return code, b"".join(printed), said

    def test_the_code_is_the_commands(self):
        for code in (0, 7, 77, 139):
            self.assertEqual(self.supervised(FakeMachine(0, b"ready\nexit %d\n" % code, b"text")), (code, b"text", []))

    def test_lines_of_two_are_named_and_complete(self):
        code, printed, _ = self.supervised(FakeMachine(0, b"ready\nexit 0\n", b"a\nb"), FakeMachine(1, b"ready\nexit 0\n", b"c\n"))
        self.assertEqual((code, sorted(printed.splitlines())), (0, [b"guest0: a", b"guest0: b", b"guest1: c"]))

    def test_a_guest_that_dies_fails_unless_it_is_expendable(self):
        def both():
            return FakeMachine(0, b"ready\nexit 0\n"), FakeMachine(1, b"ready\n", b"half", dies=True)
        code, printed, said = self.supervised(*both())
        self.assertEqual((code, printed), (run.GUEST_FAILED, b"guest1: half\n"))
        self.assertEqual(said, ["guest 1 failed: it stopped", "its last words"])
        self.assertEqual(self.supervised(*both(), expendable=True)[::2], (0, []))

    def test_a_guest_that_cannot_be_set_up_says_why(self):
        code, _, said = self.supervised(FakeMachine(0, b"booted\nfailed no interface eth0\n"))
        self.assertEqual((code, said[0]), (run.GUEST_FAILED, "guest 0 failed: no interface eth0"))

    def test_others_have_little_time_after_a_failure(self):
        run.GRACE_S = 0.1
        code, _, _ = self.supervised(FakeMachine(0, b"ready\nexit 3\n"), FakeMachine(1, b"ready\n"), timeout=600)
        self.assertEqual(code, 3)

    def test_the_time_is_over(self):
        code, _, said = self.supervised(FakeMachine(0, b"ready\n"), timeout=0.1)
        self.assertEqual((code, said[0]), (run.TIME_OVER, "guest 0 was still running the command after 0.1 s: killed"))


class LastWordsTest(unittest.TestCase):
    def test_a_panic_is_shown_from_its_beginning(self):
        trace = [f"line {i}" for i in range(100)]
        text = "\r\n".join(["booting", "Kernel panic - not syncing"] + trace)
        self.assertEqual(machine.last_words(text), ["Kernel panic - not syncing"] + trace[:59])
        self.assertEqual(machine.last_words("\n".join(trace)), trace[-60:])
        self.assertEqual(machine.last_words(""), [])


class KernelTest(unittest.TestCase):
    def test_the_newest_plain_kernel_of_a_series_is_taken(self):
        names = ("linux-image-6.1.0-9-amd64 linux-image-6.1.0-57-amd64 linux-image-6.1.0-58-cloud-amd64 "
                 "linux-image-6.1.0-58-rt-amd64 linux-image-6.1.0-58-amd64-dbg linux-image-6.1.0-58-amd64-unsigned "
                 "linux-image-6.12.9+deb12-amd64 linux-image-6.12.117+deb12-amd64 linux-image-6.12-amd64")
        kernel.apt = lambda *command: types.SimpleNamespace(
            stdout="\n".join(name for name in names.split() if name.startswith(command[-1])))
        self.assertEqual(kernel.newest_package("6.1"), "linux-image-6.1.0-57-amd64")
        self.assertEqual(kernel.newest_package("6.12"), "linux-image-6.12.117+deb12-amd64")
        self.assertIsNone(kernel.newest_package("6.6"))

    @unittest.skipUnless(shutil.which("busybox"), "no busybox here")
    def test_an_archive_is_one_that_busybox_unpacks(self):
        files = [("init", b"#!"), ("bin/odd", b"x" * 4097), ("modules/a.ko", b"")]
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["busybox", "cpio", "-id"], input=kernel.archive(files), cwd=folder, check=True,
                           capture_output=True)
            for name, content in files:
                with open(os.path.join(folder, name), "rb") as file:
                    self.assertEqual(file.read(), content)
                self.assertTrue(os.access(os.path.join(folder, name), os.X_OK))


if __name__ == "__main__":
    unittest.main()
