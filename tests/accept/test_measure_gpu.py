"""The figures of `tests/acceptance measure` on a GPU, from traces that the test writes: they need no GPU."""

import gzip
import json

import synthetic

from accept.measure_gpu import show_collectives


class Figures:
    """Keeps what a line shows."""

    def __init__(self):
        self.shown = {}

    def show(self, what, value, bar, ok):
        self.shown[what] = (value, bool(ok))

    def at_least(self, what, value, bar):
        self.show(what, value, bar, value >= bar)


def collectives(folder, change=None):
    """What show_collectives shows of two ranks with four steps, each with two all-reduces."""
    paths = synthetic.write(folder / "traces", synthetic.Run(synthetic.even(ranks=2), all_reduces=2))
    traces = [json.loads(gzip.decompress(path.read_bytes())) for path in paths]
    if change:
        change(traces)
    figures = Figures()
    show_collectives(figures, folder, traces)
    return figures.shown


def test_bytes_of_the_report(tmp_path):
    shown = collectives(tmp_path)
    assert all(ok for _, ok in shown.values()), shown
    for rank in range(2):
        assert shown[f"rank {rank}: bytes of its collectives in the report"][0] == 4 * 2 * 4 * synthetic.MESSAGE


def test_bytes_that_differ(tmp_path):
    """A trace has a kernel more than the report."""
    def add_kernel(traces):
        events = traces[1]["traceEvents"]
        events.append(next(event for event in events if event["name"].startswith("nccl")))

    shown = collectives(tmp_path, add_kernel)
    assert {what for what, (_, ok) in shown.items() if not ok} == {"rank 1: bytes of its collectives in the report"}
