"""Seeds of the simulator (tests/sim), shared among the cores."""

import os
import re
import subprocess

from accept.harness import NotRun
from accept.told import build_folder
from cluster import ROOT, ClusterError

FAILURES_SHOWN = 10
TIMEOUT_S = 4 * 3600


def simulate(line, first, count, *args):
    """Runs the seeds `first` to `first + count - 1`, with a process for each core, and fails the line if one fails.
    Returns the processes' last lines, which have the totals."""
    sim, cores = build_folder() / "tests" / "dpt_sim", min(os.cpu_count(), count)
    if not sim.exists():
        raise NotRun(f"{sim} is not built: ninja -C build dpt_sim")
    ends = [first + count * core // cores for core in range(cores + 1)]
    running = []
    for begin, end in zip(ends, ends[1:]):
        argv = [str(sim), *args, "--seeds", str(begin), str(end - begin)]
        line.command(argv)
        running.append(subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT))
    said = [process.communicate(timeout=TIMEOUT_S)[0].splitlines() for process in running]
    failed = [text for lines in said for text in lines if " FAILED " in text]
    totals = [lines[-1] if lines else "" for lines in said]
    for text in [*failed[:FAILURES_SHOWN], *totals]:
        line.note(text)
    counted = [re.match(r"(\d+) seeds, ", text) for text in totals]
    if not all(counted):
        raise ClusterError(f"dpt_sim ended with {[process.returncode for process in running]}\n" + "\n".join(totals))
    ran = sum(int(found[1]) for found in counted)
    line.show(f"failures in {ran} seeds of {count}" + "".join(f", {arg}" for arg in args), len(failed), "0",
              ran == count and not failed and all(process.returncode == 0 for process in running))
    return totals
