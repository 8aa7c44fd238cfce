"""What dpt measures, held against known causes and against the tools that people use. HTA's Python is that of
$DPT_TEST_HTA, PyTorch's that of $DPT_TORCH_PYTHON."""

import shutil

from accept import measure_cost, measure_gpu, measure_tools
from accept.causes import Case, bare_step_ms, known_cause
from accept.reproduce import reproduce
from netns import Unavailable

CASES, APART = 50, 0.05


def causes(line):
    """50 runs of two ranks whose cause is known (a rank slowed by a known time, a link of known rate, a starved loader,
    uneven batches, none), over four strategies: the paragraph names the cause in each, and every time
    is reported within 5 %."""
    shutil.rmtree(line.folder, ignore_errors=True)
    bare_ms = bare_step_ms(line.folder / "bare")
    line.note("a step without delays: " + ", ".join(f"{name} {ms:.1f} ms" for name, ms in bare_ms.items()))
    count, named, times, worst = line.repeat(CASES), 0, 0, 0.0
    for seed in range(line.seed, line.seed + count):
        case = Case(seed)
        folder = line.folder / str(case)
        try:
            right, found, text = known_cause(case, folder, bare_ms)
        except Unavailable as reason:
            line.show(str(case), str(reason), "runs", False)
            continue
        named += right
        if not right:
            line.note(f"{case}: {text.strip().splitlines()[-1]}")
        for what, true, reported in found:
            times += 1
            apart = abs(reported / true - 1)
            worst = max(worst, apart)
            if apart > APART:
                line.note(f"{case}: {what}: {reported:.1f} ms, it was {true:.1f} ms")
        if right and all(abs(reported / true - 1) <= APART for _, true, reported in found):
            shutil.rmtree(folder)
    line.show("paragraphs that name the cause", named, f"== {count}", named == count)
    line.at_most(f"worst of {times} times, reported beside known", round(worst, 4), APART)
    line.at_least("times compared", times, count)


LINES = [causes, *measure_tools.LINES_OF_MEASURE, *measure_cost.LINES_OF_MEASURE, reproduce,
         *measure_gpu.LINES_OF_MEASURE]
