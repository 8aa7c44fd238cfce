"""The files that a run writes into its log.dir (docs/architecture.md, "Files of a run"). Used by cluster.py."""

import json
import os
from pathlib import Path

NEWEST_BYTES = 4096  # has a line of a step, as a rule


class ClusterError(AssertionError):
    """A condition did not become true in time, or a process or file was left behind."""


def read_jsonl(path):
    """The objects of a file of JSON lines. A last line without a newline is still being written and is ignored; any
    other line that is not a JSON object is an error."""
    try:
        text = Path(path).read_text()
    except FileNotFoundError:
        return []
    objects = []
    for line in text[:text.rfind("\n") + 1].splitlines():
        value = json.loads(line)
        if not isinstance(value, dict):
            raise ClusterError(f"{path}: not an object: {line}")
        objects.append(value)
    return objects


def read_jsonl_end(path, size):
    """The objects of the whole lines among the last `size` bytes of such a file; None: of the whole file."""
    try:
        with open(path, "rb") as file:
            begin = max(0, file.seek(0, os.SEEK_END) - size) if size else 0
            file.seek(begin)
            data = file.read()
    except FileNotFoundError:
        return []
    if begin > 0:
        data = data[data.find(b"\n") + 1:]
    return [json.loads(line) for line in data[:data.rfind(b"\n") + 1].splitlines()]


class Outputs:
    """The files that a run writes into one log.dir."""

    def __init__(self, log_dir):
        self.dir = Path(log_dir)

    def metrics(self):
        """The lines of steps. evaluations() returns those of evaluations in the same file."""
        return [line for line in read_jsonl(self.dir / "metrics.jsonl") if "loss" in line]

    def epochs(self):
        return [line for line in read_jsonl(self.dir / "metrics.jsonl") if "epoch" in line]

    def evaluations(self):
        return [line for line in read_jsonl(self.dir / "metrics.jsonl") if "val_loss" in line]

    def events(self):
        return read_jsonl(self.dir / "events.jsonl")

    def _read(self, name):
        try:
            return json.loads((self.dir / name).read_text())
        except (FileNotFoundError, json.JSONDecodeError):
            return None

    def summary(self):
        """The summary; None: there is none yet."""
        return self._read("summary.json")

    def evaluation(self):
        """The file that a run which only evaluates writes; None: there is none."""
        return self._read("evaluation.json")

    def newest(self):
        """The last line of a step, None when there is none. Reads the end of the file alone: waits ask often."""
        for size in (NEWEST_BYTES, None):
            for line in reversed(read_jsonl_end(self.dir / "metrics.jsonl", size)):
                if "loss" in line:
                    return line
        return None

    def step(self):
        """Newest logged step, -1 when none."""
        line = self.newest()
        return line["step"] if line else -1
