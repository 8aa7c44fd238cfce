"""docs/reproduce.md: runs each of its commands, and compares what is printed with the page.

A command is a block ```sh. Blocks ```exact and ```measured behind it are excerpts of what it prints. A line of `exact`
must be printed as it is. For a line of `measured` there must be a line with the same key (strategy, world size, batch,
rank, size), as many columns, and a number in each column in which the page has one; the numbers may differ. The key
ends with the first word that ends with a colon, or before the first number with a decimal point. A line that ends with
… may go on. A printed line stands for one line of the page. Blanks do not count."""

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


def is_same(line, printed):
    return line.split() == printed.split()


def key_of(columns):
    """The columns that say which figures the line has."""
    for i, column in enumerate(columns):
        if column.endswith(":"):
            return columns[:i + 1]
        if re.search(r"\d\.\d", column):
            return columns[:i]
    return columns


def is_figure(line, printed):
    """Whether a printed line has the figures of a line of the page."""
    columns, found = line.split(), printed.split()
    if columns[-1] == "…":
        columns.pop()
        found = found[:len(columns)]
    key = key_of(columns)
    return (len(found) == len(columns) and found[:len(key)] == key and
            all(re.search(r"\d", there) for here, there in zip(columns, found) if re.search(r"\d", here)))


def missing(command, printed):
    """The lines of the page that were not printed."""
    left, absent = printed.splitlines(), []
    for is_it, wanted in ((is_same, command.exact), (is_figure, command.measured)):
        for line in wanted:
            found = next((i for i, each in enumerate(left) if is_it(line, each)), None)
            if found is None:
                absent.append(line)
            else:
                del left[found]
    return absent


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
