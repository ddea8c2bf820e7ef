"""Counts a program whose instructions are known: instructions_test.py COUNTER PROBE."""
import json, re, subprocess, sys, tempfile

counter, probe = sys.argv[1:]


def run(*flags):
    done = subprocess.run([sys.executable, counter, *flags, probe, "{n}"], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


code, text = run("--calls", "500")
assert code == 0, text
own, left_out = map(float, re.search(r"per call: ([\d.]+) own, ([\d.]+) left out", text).groups())
# 100 steps of 3 to 6 instructions, and main's loop.
assert 300 <= own <= 700, text
# Protobuf's pretended work is 200 such steps; strings, malloc and free come on top.
assert left_out >= 600, text
own_part, left_out_part = text.split("left out:\n")
assert "OwnWork" in own_part and "PretendToParse" not in own_part, text
assert all(f in left_out_part for f in ("PretendToParse", "malloc", "basic_string")), text
# memset belongs to the string that calls it.
assert "memset" not in own_part, text

# A limit that is missed makes it fail, and the line in the results says so.
with tempfile.NamedTemporaryFile("r") as results:
    code, text = run("--calls", "500", "--max", "250", "--results", results.name)
    assert code == 1 and re.search(r"^must: missed: \d+ instructions per call, at most 250$", text, re.M), text
    line = json.loads(results.read())
    assert line["flags"] == ["must: missed"] and abs(line["value"] - own) < 1, line

# A goal that is missed is said, and nothing failed.
code, text = run("--calls", "500", "--goal", "250")
assert code == 0 and "must: missed: " in text, text

# Without "{n}" there is nothing to subtract.
assert subprocess.run([sys.executable, counter, probe, "5"], capture_output=True).returncode == 2
