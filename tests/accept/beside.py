"""Runs of dpt beside the same computations in PyTorch."""

import json
import os
import re
import subprocess
import time
from pathlib import Path

from accept.harness import NotRun
from accept.stories import RUN_TIMEOUT_S
from cluster import ROOT, TINY, Cluster, ClusterError, program

PEER_TIMEOUT_S = 1200
ALONE_TIMEOUT_S = 600  # of dpt's run: steps of full-size models on a busy machine
EXAMPLE_TIMEOUT_S, EXAMPLE_MAX_S = 3600, 1200
STEPS, THREADS = 20, 2
OPTIM = {"lr": 1e-3, "min_lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "grad_clip": 1.0}
ADAMW = {"optimizer.name": "adamw", "optimizer.lr": OPTIM["lr"], "optimizer.min_lr": OPTIM["min_lr"],
         "optimizer.schedule": "cosine", "optimizer.betas": OPTIM["betas"], "optimizer.eps": OPTIM["eps"],
         "optimizer.weight_decay": OPTIM["weight_decay"], "train.grad_clip": OPTIM["grad_clip"]}
PLAIN = {"optimizer.name": "sgd", "optimizer.momentum": 0, "optimizer.weight_decay": 0, "train.grad_clip": 0,
         "optimizer.schedule": "constant", "optimizer.min_lr": 0, "train.steps": 1}


def peer_python(*modules):
    """A Python that has torch and `modules`."""
    python = os.environ.get("DPT_TORCH_PYTHON", "python3")
    if subprocess.run([python, "-c", ", ".join(["import torch", *modules])], capture_output=True).returncode != 0:
        raise NotRun(f"{python} has no {' and '.join(['torch', *modules])} (DPT_TORCH_PYTHON names another)")
    return python


def run_alone(root, sets, config=TINY):
    """One run in one process; returns its outputs and newest checkpoint. `config` has the keys not in `sets`."""
    common = {"train.log_every": 1, "train.accumulate": "auto", "optimizer.warmup_steps": 0,
              "checkpoint.every_steps": 0}
    with Cluster(root, config, {**common, **sets}, threads=THREADS) as cluster:
        worker = cluster.start_worker("a", nnodes=1, endpoint=False)
        code = worker.wait(ALONE_TIMEOUT_S)
        if code != 0:
            raise ClusterError(f"exit code {code}\n{cluster.log_tails()}")
        return worker.outputs, max(worker.checkpoint_dir.glob("step-*"))


def evaluate(folder, sets, checkpoints, config=TINY):
    """Exit code, terminal and evaluation.json of `dpt-worker --eval` of the newest checkpoint."""
    folder = folder / "eval"
    folder.mkdir()
    with Cluster(folder, config, sets, threads=THREADS) as cluster:
        worker = cluster.start_worker("eval", nnodes=1, endpoint=False, args=["--eval"],
                                      sets={"checkpoint.dir": checkpoints})
        return worker.wait(RUN_TIMEOUT_S), worker.log(), worker.outputs.evaluation()


def example(line, name, what, percent):
    """Runs deploy/NAME, which ends with the accuracy of `what`: at least `percent` of 100, within minutes."""
    line.command(f"deploy/{name}")
    began = time.monotonic()
    run = subprocess.run([ROOT / "deploy" / name], capture_output=True, text=True, timeout=EXAMPLE_TIMEOUT_S)
    (line.folder / "run.log").write_text(run.stdout + run.stderr)
    found = re.search(rf"^{name}: ([0-9.]+)% of ", run.stdout, re.M)
    line.show("exit code", run.returncode, "== 0", run.returncode == 0)
    line.at_least(what, float(found[1]) if found else 0, percent)
    line.at_most("with data, packages and build, s", round(time.monotonic() - began), EXAMPLE_MAX_S)


def losses_of(outputs):
    return [line["loss"] for line in outputs.metrics() if "loss" in line]


def make_folders(line, name, *whats):
    root = line.folder / name.replace(", ", "-").replace(" ", "-")
    folders = {what: root / what for what in whats}
    for folder in folders.values():
        folder.mkdir(parents=True)
    return folders


def compare(line, name, losses, found):
    """Compares with PyTorch in double precision, because in large models PyTorch's fp32 differs more from it than dpt's
    (SmolLM2-135M: by 1.5e-4 in one of the 20 losses; dpt by 4e-6). In bf16 single small tensors (biases, norms) differ
    more than the whole gradient, in PyTorch, too: a tensor may differ twice as much as PyTorch's worst."""
    line.note(f"{name}: {found['model']}, {found['parameters']:,} parameters")
    own = found["gradients"]["own"]["worst"]
    line.note(f"{name}: PyTorch's fp32 differs from double precision by {own:.2g} in a tensor's first gradient, by "
              f"{found['own']:.2g} in a loss")
    line.at_most(f"{name}: worst relative L2 of a tensor's first gradient ({found['gradients']['tensor']})",
                 found["gradients"]["worst"], 1e-4)
    bf16 = found["bf16"]
    line.note(f"{name}: PyTorch's first gradients in bf16 differ from double precision by {bf16['own']['whole']:.2g}, "
              f"in the worst tensor ({bf16['own']['tensor']}) by {bf16['own']['worst']:.2g}")
    line.at_most(f"{name}: relative L2 of the whole first gradient in bf16", bf16["whole"], 1e-2)
    line.at_most(f"{name}: worst relative L2 of a tensor's first gradient in bf16 ({bf16['tensor']})", bf16["worst"],
                 max(1e-2, 2 * bf16["own"]["worst"]))
    worst = max(abs(a - b) for a, b in zip(losses, found["losses"]))
    line.show(f"{name}: losses compared", min(len(losses), len(found["losses"])), f"== {STEPS}",
              len(losses) == len(found["losses"]) == STEPS)
    line.at_most(f"{name}: worst difference of {STEPS} losses", worst, 1e-4)


def ask(peer, checkpoint, spec):
    """Runs the program `peer` of tests/accept on a checkpoint; returns its report."""
    return json.loads(run_peer(peer, checkpoint, json.dumps(spec))[0])


def run_peer(*argv):
    run = subprocess.run([peer_python(), *map(str, argv)], capture_output=True, text=True, timeout=PEER_TIMEOUT_S)
    if run.returncode != 0:
        raise ClusterError(f"{Path(argv[0]).name}: {run.stderr[-2000:]}")
    return run.stdout.strip().splitlines()[-1:]


def dpt_ckpt(*argv):
    """The output of dpt-ckpt."""
    run = subprocess.run([str(program("dpt-ckpt")), *map(str, argv)], capture_output=True, text=True,
                         timeout=RUN_TIMEOUT_S)
    if run.returncode != 0:
        raise ClusterError(f"dpt-ckpt {argv[0]}: {run.stderr}")
    return run.stdout
