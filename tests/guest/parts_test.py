"""Parts of tests/guest/run that can be tested without a boot."""
import os
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

sys.dont_write_bytecode = True
import kernel
import machine


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
