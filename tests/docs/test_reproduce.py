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


def test_refuses_a_page_without_pairs():
    with pytest.raises(ValueError, match="without an excerpt"):
        reproduce.commands("```sh\nx\n```\n")
    with pytest.raises(ValueError, match="without a command"):
        reproduce.commands("```exact\nx\n```\n")


def test_failing_command_is_told(tmp_path):
    with pytest.raises(ClusterError, match="exit 7"):
        reproduce.run(reproduce.Command("echo before; exit 7"), tmp_path / "run")
