#!/usr/bin/env python3
"""Records the learning rates of PyTorch's schedulers, with which lr_test.c compares dpt's.

    python3 record_lr.py > lr_cases.inc       (needs torch, any version from 1.13)

A schedule is warm-up (LinearLR) and then ConstantLR, LinearLR or CosineAnnealingLR, joined by SequentialLR and stepped
once a step; docs/training.md says which key of dpt corresponds to which of PyTorch's arguments.
"""

import textwrap
import warnings

import torch
from torch.optim import lr_scheduler as s

LR, MIN_LR = 3e-4, 3e-5
# Schedule, steps of warm-up, steps, schedule_steps (0: auto).
CASES = [("CONSTANT", 10, 40, 0), ("LINEAR", 10, 40, 0), ("COSINE", 10, 40, 0), ("LINEAR", 0, 17, 0),
         ("COSINE", 2, 33, 0), ("COSINE", 0, 20, 20), ("COSINE", 4, 64, 20), ("LINEAR", 4, 40, 20)]


def rates(schedule, warmup, steps, schedule_steps):
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=LR)
    span = schedule_steps or steps - 1 - warmup
    if schedule == "CONSTANT":
        after = s.ConstantLR(optimizer, factor=1.0, total_iters=1)
    elif schedule == "LINEAR":
        after = s.LinearLR(optimizer, start_factor=1.0, end_factor=MIN_LR / LR, total_iters=span)
    else:
        after = s.CosineAnnealingLR(optimizer, T_max=span, eta_min=MIN_LR)
    if warmup > 0:
        before = s.LinearLR(optimizer, start_factor=1.0 / warmup, end_factor=1.0, total_iters=warmup - 1)
        after = s.SequentialLR(optimizer, [before, after], milestones=[warmup])
    for _ in range(steps):
        yield optimizer.param_groups[0]["lr"]
        optimizer.step()
        after.step()


def main():
    warnings.simplefilter("ignore")
    print(f"/* Made by record_lr.py with torch {torch.__version__}: lr {LR}, min_lr {MIN_LR}. */")
    for schedule, warmup, steps, schedule_steps in CASES:
        values = ", ".join(repr(r) for r in rates(schedule, warmup, steps, schedule_steps))
        print(f"{{DPT_SCHEDULE_{schedule}, {warmup}, {steps}, {schedule_steps},")
        print(textwrap.fill(f"{{{values}}}}},", 100, initial_indent=" ", subsequent_indent="  "))


if __name__ == "__main__":
    main()
