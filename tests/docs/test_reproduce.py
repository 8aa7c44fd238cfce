"""docs/reproduce.md: its blocks are read as tests/accept/reproduce.py says, commands that only compute print their
figures, and a figure that is not printed is found. Run by ctest: pytest test_reproduce.py, with DPT_BIN naming the
programs."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from accept import reproduce  # noqa: E402
from cluster import ClusterError  # noqa: E402

COMPUTED = ("dpt-plan", "--extrapolate", "dpt-data", "--draw")
FOUND = reproduce.commands(reproduce.PAGE.read_text())


@pytest.mark.parametrize("command", [c for c in FOUND if any(word in c.text for word in COMPUTED)],
                         ids=lambda command: command.text.split("\n")[0][:40])
def test_computed_figures_are_printed(tmp_path, command):
    assert reproduce.missing(command, reproduce.run(command, tmp_path / "run")) == []


def test_page_has_its_commands():
    assert len(FOUND) >= reproduce.LEAST_COMMANDS
    assert sum(any(word in c.text for word in COMPUTED) for c in FOUND) >= 7


def test_absent_figures_are_found():
    [command] = reproduce.commands("```sh\nx\n```\n\n```exact\na  12\n```\n\n```measured\nrate: 3.5 s\n```\n")
    assert reproduce.missing(command, "a 12\nrate: 99 s\n") == []
    assert reproduce.missing(command, "a 13\nrate: 3.5 s\n") == ["a  12"]
    assert reproduce.missing(command, "a 12\nrate: none\n") == ["rate: 3.5 s"]
    assert reproduce.missing(command, "a 12\nrates: 3.5 s\n") == ["rate: 3.5 s"]


@pytest.mark.parametrize("line, same, others", [
    ("2  8  1  59.7  0.0e+00", "2 8 1 60.2 1.5e-09", ["8 8 1 59.7 0.0e+00", "2 8 1 59.7", "2 8 1 59.7 -", "7 rows"]),
    ("fp32  4  60.1  -", "fp32 4 99.0 12.5", ["fp32 8 60.1 -", "bf16 4 60.1 -", "fp32 4 60.1", "fp32 4 60.1 - -"]),
    ("ddp  2  42.9  0.4  computation", "ddp 2 1.0 9.9 none", ["ddp 4 42.9 0.4 computation", "ddp 2 42.9 nan none"]),
    ("1024  256  sum  N/A  3.1", "1024 256 sum N/A 2.0", ["2048 256 sum N/A 3.1", "1024 256 sum 3.1 3.1"]),
    ("rank 0  37.13", "rank 0 1.00", ["rank 1 37.13", "rank 37.13"]),
    ("OOM at batch=64: 570 bytes: …", "OOM at batch=64: 9 bytes: out of memory", ["OOM at batch=32: 570 bytes: x",
                                                                                "OOM at batch=64: no bytes: x"]),
    ("step ms  runs", "step  ms runs", ["step ms", "steps ms runs"]),
])
def test_rows_are_told_apart(line, same, others):
    """By their keys, the number of their columns, and the columns that are numbers."""
    command = reproduce.Command("x", measured=[line])
    assert reproduce.missing(command, f"first\n{same}\nlast\n") == []
    assert reproduce.missing(command, "first\n" + "\n".join(others)) == [line]


@pytest.mark.parametrize("command", FOUND, ids=lambda command: command.text.split("\n")[0][:40])
def test_each_line_of_the_page_counts(command):
    """No line stands for another one of its command."""
    lines = command.exact + command.measured
    assert reproduce.missing(command, "\n".join(lines)) == []
    for i, line in enumerate(lines):
        assert reproduce.missing(command, "\n".join(lines[:i] + lines[i + 1:])) == [line]


def test_refuses_a_page_without_pairs():
    with pytest.raises(ValueError, match="without an excerpt"):
        reproduce.commands("```sh\nx\n```\n")
    with pytest.raises(ValueError, match="without a command"):
        reproduce.commands("```exact\nx\n```\n")


def test_failing_command_is_told(tmp_path):
    with pytest.raises(ClusterError, match="exit 7"):
        reproduce.run(reproduce.Command("echo before; exit 7"), tmp_path / "run")
