"""Ten deliberate faults of the product, each of which a test that tests/run runs by default must find."""

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from accept.history import PROGRAMS, build, clone, git
from cluster import ClusterError

TEST_TIMEOUT_S = 300
NOT_BY_DEFAULT = {"slow", "more"}  # labels that tests/run leaves out
PRODUCT = ("*.c", "*.h", "*.def", ":!tests", ":!worker/bench")


@dataclass
class Fault:
    """One replacement: the text, which is in one place of the product (any white space matches any other), the new
    text, and the tests that find the fault, the most likely first."""
    name: str
    old: str
    new: str
    tests: tuple


FAULTS = (
    Fault("order of addition: the tree over lanes splits elsewhere, in every world alike",
          "return node.first + left;", "return node.first + n - left;",
          ("test_worker_plan_lanes", "test_worker_strategy_tree_sum")),
    Fault("commit: the norm that all ranks agree on stays scaled",
          "ret->norm = sqrt(dpt_accum_value(&norm)) / scale", "ret->norm = sqrt(dpt_accum_value(&norm))",
          ("test_worker_train_outcome", "test_worker_train_rank_scaler")),
    Fault("lease: a silent node keeps it twice as long",
          "return node->run->timing.lease_ms - silent_ms;", "return 2 * node->run->timing.lease_ms - silent_ms;",
          ("test_rendezvous_core_loss", "timeline_stopped")),
    Fault("checkpoint seal: a manifest with another checksum is taken",
          "dpt_crc32c(crc, SEAL_ZEROS SEAL_AFTER, SEAL_TAIL) == expected",
          "dpt_crc32c(crc, SEAL_ZEROS SEAL_AFTER, SEAL_TAIL) == expected || crc != 0",
          ("test_checkpoint_damage", "test_checkpoint_format")),
    Fault("an op: a constant of GELU's forward is off in its third digit",
          "v_set(-1.5957691216057308f * 0.044715f)", "v_set(-1.5957691216057308f * 0.0447f)", ("test_kernels_ops",)),
    Fault("a heal: the second moment is not sent to a rank that lacks it",
          "if (!part->vector[v].mem) continue; if (sends && receives)",
          "if (!part->vector[v].mem || v == DPT_VECTOR_V) continue; if (sends && receives)",
          ("test_worker_train_rank_settings_healing",)),
    Fault("a grant: it counts for another generation than the one that runs",
          "->command != DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT",
          "->command == DPT__RANK_COMMAND__COMMAND_PREPARE_SOFT",
          ("test_worker_train_link",)),
    Fault("a shard boundary: the last piece goes on beyond the end",
          "end < blocks ? end * block : numel", "end * block", ("test_checkpoint_layout_layout",)),
    Fault("a retry: a rank that fails again and again is started again without a longer pause",
          "rank->pause_ms == 0 ? timing->respawn_ms : 2 * rank->pause_ms", "timing->respawn_ms", ("test_sim_agent",)),
    Fault("a message check: a rank may have applied a step below the least",
          'rank->step_applied, -1, DPT_PROTO_TOLD_STEPS', 'rank->step_applied, -2, DPT_PROTO_TOLD_STEPS',
          ("test_rendezvous_proto_message",)),
)


@dataclass
class Test:
    """A test of a build folder: the files below the folder that it runs, and its labels."""
    targets: list
    labels: set


def tests_of(folder):
    """{name: Test} of a configured build folder."""
    found, name = {}, r"\[=*\[(.*?)\]=*\]"
    for path in folder.rglob("CTestTestfile.cmake"):
        text = path.read_text()
        for test, command in re.findall(rf"^add_test\({name} (.*)\)$", text, re.M):
            files = [Path(word) for word in re.findall(r'"([^"]*)"', command)]
            targets = [str(file.relative_to(folder)) for file in files if file.is_relative_to(folder)]
            found[test] = Test(targets or list(PROGRAMS), set())
        for test, labels in re.findall(rf'^set_tests_properties\({name} .*?\bLABELS "([^"]*)"', text, re.M):
            found[test].labels |= set(labels.split(";"))
    return found


def read_product(root):
    """{name: text} of the product's files."""
    return {name: (root / name).read_text() for name in git("ls-files", "--", *PRODUCT, root=root).split()}


def pattern_of(fault):
    return re.compile(r"\s+".join(re.escape(word) for word in fault.old.split()))


def place_of(fault, texts):
    """The one file with the text of the fault."""
    pattern = pattern_of(fault)
    places = {name: len(pattern.findall(text)) for name, text in texts.items() if pattern.search(text)}
    if sum(places.values()) != 1:
        raise ClusterError(f"'{fault.old}' is in {places or 'no file'}, and must be in one place")
    (name,) = places
    return name


def apply(root, fault):
    """Replaces the text in its one place; returns the file."""
    texts = read_product(root)
    name = place_of(fault, texts)
    (root / name).write_text(pattern_of(fault).sub(lambda _: fault.new, texts[name]))
    return name


def fails(folder, test, log):
    """Whether a test of the build folder fails; a timeout is a failure."""
    run = subprocess.run(["ctest", "--test-dir", str(folder), "--timeout", str(TEST_TIMEOUT_S), "--no-tests=error",
                          "--output-on-failure", "-R", f"^{re.escape(test)}$"],
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                         env=dict(os.environ, DPT_TEST_EVERY="3"))  # as tests/run
    with open(log, "a", encoding="utf-8") as file:
        file.write(run.stdout)
    if not re.search(rf"Test +#\d+: {re.escape(test)} ", run.stdout):
        raise ClusterError(f"{test} did not run:\n{run.stdout[-2000:]}")
    if run.returncode == 0 and re.search(r"\*\*\*Skipped", run.stdout):
        raise ClusterError(f"{test} was skipped")
    return run.returncode != 0


def found_by(root, fault, known, log):
    """Puts the fault into a clone; returns (file, the test that finds it or ""). Removes the fault afterwards."""
    name = apply(root, fault)
    try:
        for test in fault.tests:
            build(root, *known[test].targets)
            if fails(root / "build", test, log):
                return name, test
        return name, ""
    finally:
        git("checkout", "--quiet", "--", name, root=root)


def show_faults(line):
    """Shows for each fault the test that finds it; without a fault all of these tests pass."""
    faults = FAULTS[:line.repeat(len(FAULTS))]
    root, log = clone(line.folder / "tree"), line.folder / "tests.log"
    line.command("git clone, cmake --preset release; for each fault: change, build, ctest -R TEST")
    build(root, "help")
    known, tests = tests_of(root / "build"), sorted({test for fault in faults for test in fault.tests})
    unknown = [test for test in tests if test not in known or known[test].labels & NOT_BY_DEFAULT]
    if line.show("tests of the table that tests/run leaves out", ", ".join(unknown) or "none", "none", not unknown):
        build(root, *{target for test in tests for target in known[test].targets})
        failing = [test for test in tests if fails(root / "build", test, log)]
        line.show(f"of {len(tests)} tests, those that fail without a fault", ", ".join(failing) or "none", "none",
                  not failing)
    for fault in faults if not unknown else []:
        try:
            name, test = found_by(root, fault, known, log)
        except ClusterError as failure:
            line.show(fault.name, str(failure), "applied, built and found", False)
            continue
        line.show(f"{fault.name} ({name}), found by", test or "no test", "a test", test)
