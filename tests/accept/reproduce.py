"""docs/reproduce.md: runs each of its commands, and compares what is printed with the page.

A command is a block ```sh. Blocks ```exact and ```measured behind it are excerpts of what it prints. A line of `exact`
must be printed as it is. For a line of `measured` there must be a line with the same words before its first number;
its numbers may differ. Blanks do not count."""

import os
import re
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from cluster import ROOT, ClusterError, program

PAGE = ROOT / "docs" / "reproduce.md"
COMMAND_TIMEOUT_S, PAGE_BAR_S = 300, 600
FENCE = re.compile(r"^```(sh|exact|measured)\n(.*?)^```$", re.M | re.S)
LEAST_COMMANDS = 15  # a page that lost its blocks does not pass


@dataclass
class Command:
    """A command of the page, with the lines that it must print."""
    text: str
    exact: list = field(default_factory=list)
    measured: list = field(default_factory=list)


def commands(page):
    """The commands of a page, in its order. ValueError: an excerpt before the first command, or a command without an
    excerpt."""
    found = []
    for kind, text in FENCE.findall(page):
        if kind == "sh":
            found.append(Command(text))
        elif not found:
            raise ValueError(f"an excerpt without a command: {text}")
        else:
            getattr(found[-1], kind).extend(line for line in text.splitlines() if line.strip() and line.strip() != "…")
    for command in found:
        if not command.exact and not command.measured:
            raise ValueError(f"a command without an excerpt: {command.text}")
    return found


def words(line):
    return " ".join(line.split())


def name_of(line):
    """The words before the first number: which figure the line has."""
    return words(re.split(r"\d", line, maxsplit=1)[0])


def missing(command, printed):
    """The lines of the page that were not printed."""
    lines = [words(line) for line in printed.splitlines()]
    names = {name_of(line) for line in lines if re.search(r"\d", line)}
    return ([line for line in command.exact if words(line) not in lines] +
            [line for line in command.measured
             if (name_of(line) not in names if re.search(r"\d", line) else words(line) not in lines)])


def run(command, folder):
    """What the command prints, run in an empty folder with the built programs on the PATH."""
    folder.mkdir(parents=True)
    path = f"{Path(program('dpt-bench')).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["/bin/bash", "-euo", "pipefail", "-c", command.text], cwd=folder, capture_output=True,
                          text=True, timeout=COMMAND_TIMEOUT_S, env=dict(os.environ, PATH=path))
    if done.returncode != 0:
        raise ClusterError(f"exit {done.returncode} of\n{command.text}{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout


def reproduce(line):
    """Every command of docs/reproduce.md runs, all in at most 10 minutes; each line of its blocks `exact` is printed,
    and each figure of its blocks `measured`."""
    found = commands(PAGE.read_text())
    line.at_least("commands", len(found), LEAST_COMMANDS)
    began = time.monotonic()
    for number, command in enumerate(found, 1):
        first = command.text.strip().splitlines()[-1][:80]
        line.command(command.text.strip())
        absent = missing(command, run(command, line.folder / str(number)))
        for text in absent:
            line.note(f"not printed: {text}")
        line.show(f"lines of the page that were printed, {first}",
                  len(command.exact) + len(command.measured) - len(absent),
                  f"== {len(command.exact) + len(command.measured)}", not absent)
    line.at_most("all commands", round(time.monotonic() - began), PAGE_BAR_S, "s")
