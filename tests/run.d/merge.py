"""Makes one CTest folder of several build folders, so that one ctest runs and sums up all of them.

    merge.py OUT NAME:FOLDER:LABELS[:EXCLUDED] …

LABELS and EXCLUDED are regular expressions on labels, as ctest's -L and -LE ("" takes all, excludes none). A test t of
FOLDER becomes NAME/t with the label NAME added. Also writes OUT/lanes.json, for ctest's --resource-spec-file, and
prints the number of tests that it lets run at once. tests/run calls this; see there.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SLOWER = {"asan": 4, "tsan": 6}  # factors of the tests' timeouts, which are for the release build
# Tests that run at once, for each two cores: those that compute and, beside them, those labelled waits, which mostly
# wait. Neither takes the other's lanes: no core idles while there are tests that compute.
LANES = {"computes": 3, "waits": 3}
NAMES_OF_TESTS = {"DEPENDS"}
NAMES_OF_FIXTURES = {"FIXTURES_CLEANUP", "FIXTURES_REQUIRED", "FIXTURES_SETUP"}


def quoted(text):
    """The text as a bracket argument, in which CMake interprets nothing."""
    text = str(text)
    level = 0
    while "]" + "=" * level + "]" in text:
        level += 1
    return f"[{'=' * level}[{text}]{'=' * level}]"


def as_list(value):
    return value if isinstance(value, list) else [value]


def launcher(name):
    """TSan of gcc 12 and older cannot map its shadow where the kernel randomises addresses by more than 28 bits."""
    try:
        bits = int(Path("/proc/sys/vm/mmap_rnd_bits").read_text())
    except (OSError, ValueError):
        return []
    command = ["setarch", os.uname().machine, "-R"]
    if name != "tsan" or bits <= 28 or not shutil.which("setarch"):
        return []
    return command if subprocess.run(command + ["true"], capture_output=True).returncode == 0 else []


def tests_of(folder):
    shown = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], capture_output=True, text=True)
    if shown.returncode:
        sys.exit(f"merge: ctest in {folder}: {shown.stderr}")
    return json.loads(shown.stdout)["tests"]


def lines_of(name, folder, wanted, excluded):
    prefix = launcher(name)
    for test in tests_of(folder):
        properties = {p["name"]: p["value"] for p in test.get("properties", [])}
        labels = as_list(properties.get("LABELS", []))
        if wanted and not any(re.search(wanted, label) for label in labels):
            continue
        if excluded and any(re.search(excluded, label) for label in labels):
            continue
        if "command" not in test:
            sys.exit(f"merge: {folder}: test {test['name']} has no program; is it built?")
        properties["LABELS"] = labels + [name]
        if name in SLOWER and "TIMEOUT" in properties:
            properties["TIMEOUT"] *= SLOWER[name]
        # ctest starts the test with the highest cost first: short tests run last, and no core waits long.
        properties.setdefault("COST", properties.get("TIMEOUT", 0))
        properties["RESOURCE_GROUPS"] = "waits:1" if "waits" in labels else "computes:1"
        for key in NAMES_OF_TESTS | NAMES_OF_FIXTURES:
            if key in properties:
                properties[key] = [f"{name}/{item}" for item in as_list(properties[key])]
        full = f"{name}/{test['name']}"
        yield f"add_test({quoted(full)} {' '.join(quoted(a) for a in prefix + test['command'])})"
        for key, value in properties.items():
            text = ";".join(str(item) for item in as_list(value))
            yield f"set_tests_properties({quoted(full)} PROPERTIES {key} {quoted(text)})"


def main(out, sources):
    lines = []
    for source in sources:
        name, folder, wanted, excluded = (source.split(":") + ["", ""])[:4]
        lines += lines_of(name, folder, wanted, excluded)
    if not lines:
        sys.exit("merge: no test is left to run")
    Path(out).mkdir(parents=True, exist_ok=True)
    (Path(out) / "CTestTestfile.cmake").write_text("\n".join(lines) + "\n")
    lanes = {name: max(2, n * len(os.sched_getaffinity(0)) // 2) for name, n in LANES.items()}
    spec = {"version": {"major": 1, "minor": 0},
            "local": [{name: [{"id": "0", "slots": n}] for name, n in lanes.items()}]}
    (Path(out) / "lanes.json").write_text(json.dumps(spec))
    print(sum(lanes.values()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
