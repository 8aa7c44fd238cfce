"""dpt-trace names the cause of lost time in 50 of 50 drawn runs, and reports each time within 5 %.

A run has one known cause (a slow rank, a slow link, a starved loader, uneven batches, a slow checkpoint, an
evaluation), or none. All times have noise, and the other causes take a little time too. Run by ctest: pytest
test_verdict.py, with DPT_TRACE naming the program; DPT_TEST_SEED moves the seeds."""

import csv
import os
import random
import re
import subprocess

import pytest
import synthetic
from synthetic import Run, Step

PROGRAM = os.environ["DPT_TRACE"]
FIRST = int(os.environ.get("DPT_TEST_SEED", "0"))
CASES, TIMEOUT_S = 50, 60
CAUSES = ("straggler", "communication", "data", "data of one rank", "imbalance", "imbalance of all", "checkpoint",
          "evaluation", "compute")
KEYS = {"straggler": "cluster.threads", "data": "data.train", "imbalance": "train.global_batch",
        "checkpoint": "checkpoint.every_steps", "evaluation": "train.eval_every", "compute": "train.precision"}


def noisy(rng, value, share=0.02):
    return value * rng.uniform(1 - share, 1 + share)


def draw(rng, cause):
    """A run with this cause, and the rank that has it."""
    ranks, count, base = rng.randint(2, 6), rng.randint(4, 8), rng.uniform(20, 80)
    lost, slow = base * rng.uniform(0.25, 1.5), rng.randrange(ranks)
    steps = [[Step(noisy(rng, base), noisy(rng, base * rng.uniform(0, 0.03)), 0, 512) for _ in range(count)]
             for _ in range(ranks)]
    transfer = lost if cause == "communication" else base * rng.uniform(0.01, 0.05)
    for index in range(count):
        late = rng.randrange(ranks) if cause == "imbalance of all" else slow
        for rank in range(ranks):
            step = steps[rank][index]
            if cause == "straggler" and rank == slow:
                step.compute_ms += noisy(rng, lost)
            if cause == "data" or (cause == "data of one rank" and rank == slow):
                step.data_ms += noisy(rng, lost)
            if cause.startswith("imbalance") and rank == late:
                step.work = int(512 * (1 + lost / base))
                step.compute_ms = noisy(rng, base * (1 + lost / base))
            if cause == "checkpoint":
                step.save_ms += noisy(rng, lost)
            if cause == "evaluation":
                step.evaluation_ms += noisy(rng, lost)
    form = rng.choice(["dpt", "pytorch"])
    return Run(steps, transfer_ms=transfer, form=form, annotated=form == "dpt" and rng.random() < 0.5,
               strategy=rng.choice(["ddp", "zero2", "full_shard"]), compute_kernels=rng.randint(1, 6)), slow


def expected_of(run, rank):
    """The sums over the steps that count, in ms."""
    sums = dict.fromkeys(("data_wait_ms", "checkpoint_ms", "evaluation_ms", "peer_wait_ms", "all_reduce_ms",
                          "step_ms"), 0.0)
    counted, begins = len(run.steps[0]) - 1, [0.0] * len(run.steps)
    for index in range(counted):
        steps = [steps[index] for steps in run.steps]
        ready = [begin + step.data_ms + step.compute_ms for begin, step in zip(begins, steps)]
        done = max(ready) + run.transfer_ms
        ends = [done + synthetic.OPTIMIZER_MS + step.evaluation_ms + step.save_ms for step in steps]
        sums["data_wait_ms"] += steps[rank].data_ms
        sums["checkpoint_ms"] += steps[rank].save_ms
        sums["evaluation_ms"] += steps[rank].evaluation_ms
        sums["peer_wait_ms"] += max(ready) - ready[rank]
        sums["all_reduce_ms"] += done - ready[rank]
        sums["step_ms"] += (ends[rank] - begins[rank]) / counted
        begins = ends
    return sums


@pytest.mark.parametrize("seed", range(FIRST, FIRST + CASES))
def test_names_the_cause(tmp_path, seed):
    rng = random.Random(seed)
    cause = CAUSES[seed % len(CAUSES)]
    run, slow = draw(rng, cause)
    command, base = ("ddp", "reports") if run.strategy == "ddp" else ("sharding", "reports_sharding")
    synthetic.write(tmp_path / "traces", run)
    done = subprocess.run([PROGRAM, command], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    text = re.search(r"The bottleneck is (.*)", done.stdout)[1]
    word = {"straggler": f"rank {slow}, a straggler", "compute": "computation", "checkpoint": "the checkpoint",
            "evaluation": "the evaluation", "data of one rank": f"data: rank {slow} waits"}.get(cause, cause.split()[0])
    assert text.startswith(word), f"seed {seed}, {cause}: {text}"
    assert KEYS.get(cause.split()[0], "strategy.") in text, text
    with open(tmp_path / base / run.strategy / "summary.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    for rank, row in enumerate(rows):
        for column, value in expected_of(run, rank).items():
            assert abs(float(row[column]) - value) <= 0.05 * value + 0.01, (cause, rank, column, row[column], value)
