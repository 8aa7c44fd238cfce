"""What dpt measures, held against known causes and against the tools that people use. HTA's Python is that of
$DPT_TEST_HTA, PyTorch's that of $DPT_TORCH_PYTHON."""

import shutil

from accept import measure_cost, measure_gpu, measure_tools
from accept.causes import TRACED_STEPS, Case, known_cause, measure_bare
from accept.harness import NotRun
from accept.reproduce import reproduce
from netns import Unavailable

CASES, APART = 50, 0.05


def causes(line):
    """50 runs of two ranks whose cause is known (a rank slowed by a known time, a link of known rate, a starved loader,
    uneven batches, a slow disk of checkpoints, none), over four strategies: the paragraph names the cause and the key
    to change in each, and every time that the cause determines is reported within 5 %."""
    shutil.rmtree(line.folder, ignore_errors=True)
    try:
        bare = measure_bare(line.folder / "bare")
    except Unavailable as reason:
        raise NotRun(str(reason)) from None
    line.note("steps without a cause: " + ", ".join(
        f"{name}{' over a link' if link else ''} {each.steps / TRACED_STEPS:.1f} ms"
        for (link, name), each in bare.items()))
    count, causes, keys, found, worst = line.repeat(CASES), 0, 0, 0, 0.0
    for seed in range(line.seed, line.seed + count):
        case = Case(seed)
        folder = line.folder / str(case)
        named, keyed, times, said = known_cause(case, folder, bare)
        causes, keys, found = causes + named, keys + keyed, found + len(times)
        if not (named and keyed):
            line.note(f"{case}: key {said.key}, not {case.key()}: {said.text.strip().splitlines()[-1]}")
        late = [each for each in times if each.apart() > APART]
        for each in late:
            line.note(f"{case}: {each.what}: {each.reported:.1f} ms, it was {each.true:.1f} ms (of {each.of:.1f})")
        worst = max(worst, *(each.apart() for each in times))
        if named and keyed and not late:
            shutil.rmtree(folder)
    line.show("paragraphs that name the cause", causes, f"== {count}", causes == count)
    line.show("paragraphs that name the key", keys, f"== {count}", keys == count)
    line.at_most(f"worst of {found} times, reported beside known", round(worst, 4), APART)
    line.at_least("times compared", found, 5 * count)


LINES = [causes, *measure_tools.LINES_OF_MEASURE, *measure_cost.LINES_OF_MEASURE, reproduce,
         *measure_gpu.LINES_OF_MEASURE]
