"""Traces, their cost and dpt-doctor on a GPU: functions of the topic `measure`, which are not run without one. The
programs are those of preset cuda, as in the topic `gpu`, whose line `peak_memory` has a batch that does not fit
(`OOM at batch_size=`)."""

import json
import os
import re
import subprocess
from contextlib import contextmanager

from accept import measure_cost
from accept.causes import report
from accept.gpu import APART, TEST_TIMEOUT_S, need_gpu
from cluster import Cluster, ClusterError, program

ACTIVE, STEPS = 3, 12
BYTES = {"Float": 4, "BFloat16": 2, "Half": 2, "Byte": 1}  # of an element, by PyTorch's words
# A step of the training that a GPU is used for: GPT-2 124M in bf16, 65,536 tokens.
LARGE = {"cluster.device": "cuda", "train.precision": "bf16", "train.micro_batch": 32, "train.seq_len": 1024,
         "train.global_batch": 64}
SMI_TIMEOUT_S = 60


@contextmanager
def on_a_gpu(line):
    """Raises NotRun without a GPU. Within, the programs are those of preset cuda, if DPT_BIN names no others."""
    before = os.environ.get("DPT_BIN")
    try:
        need_gpu(line)
        yield
    finally:
        if before is None:
            os.environ.pop("DPT_BIN", None)


def traced(line, device, nodes):
    """The folder of a run whose nodes have one rank each and are traced for a window, and its traces."""
    root = line.folder / f"{nodes} nodes"
    sets = {"cluster.device": device, "cluster.nnodes": nodes, "cluster.timeout_s": 10, "train.steps": STEPS,
            "train.eval_every": 0, "checkpoint.every_steps": 0, "trace.dir": root / "traces", "trace.wait": 2,
            "trace.warmup": 1, "trace.active": ACTIVE, "trace.repeat": 1}
    with Cluster(root, sets=sets, shared_dirs=True) as cluster:
        cluster.start_server()
        workers = [cluster.start_worker(name, env=dict(APART, NCCL_HOSTID=name)) for name in "abcd"[:nodes]]
        line.command(workers[0].popen.args)
        codes = cluster.wait_done(TEST_TIMEOUT_S)
        if any(codes.values()):
            raise ClusterError(f"exit codes {codes}\n" + cluster.log_tails())
    return root, measure_cost.traces(root / "traces")


def of(trace, *categories):
    return [event for event in trace["traceEvents"] if event.get("cat") in categories]


def show_device_work(line, trace):
    """Each kernel and copy of the GPU has the call that posted it, and no record is lost unseen."""
    kernels, copies = of(trace, "kernel"), of(trace, "gpu_memcpy", "gpu_memset")
    calls = {call["args"]["correlation"] for call in of(trace, "cuda_runtime", "cuda_driver")}
    alone = [event["name"] for event in kernels + copies if event["args"]["correlation"] not in calls]
    steps = sum(event["name"].startswith("ProfilerStep#") for event in of(trace, "user_annotation"))
    line.show("traced steps", steps, f"== {ACTIVE}", steps == ACTIVE)
    line.at_least("kernels of a step", len(kernels) / ACTIVE, 10)
    line.at_least("copies of a step", len(copies) / ACTIVE, 1)
    line.show("kernels and copies without their call", alone[:3] or 0, "== 0", not alone)
    line.at_least("waits for the GPU", len(of(trace, "cuda_sync")), 1)
    dpt = trace["dpt"]
    line.at_least("records of CUPTI", dpt.get("device_records", 0), len(kernels) + len(copies))
    for what in ("dropped_device_records", "dropped_events"):
        line.show(what, dpt.get(what), "== 0", dpt.get(what) == 0)


def show_collectives(line, root, traces):
    """NCCL's kernels have their bytes, and dpt-trace adds these up to the bytes of its report."""
    rows = report(root).rows
    for trace in traces:
        rank = trace["distributedInfo"]["rank"]
        nccl = [event for event in of(trace, "kernel") if event["name"].startswith("nccl")]
        line.at_least(f"rank {rank}: kernels of NCCL in a step", len(nccl) / ACTIVE, 2)
        sized = [event["args"] for event in nccl if event["args"].get("In msg nelems")]
        line.show(f"rank {rank}: kernels of NCCL without a size", len(nccl) - len(sized), "== 0", nccl and
                  len(nccl) == len(sized))
        size = sum(max(args["In msg nelems"], args["Out msg nelems"]) * BYTES[args["dtype"]] for args in sized)
        told = sum(int(value) for name, value in rows[rank].items() if name.endswith("_bytes") and
                   not name.startswith("memory"))
        line.show(f"rank {rank}: bytes of its collectives in the report", told, f"== {size} > 0", told == size > 0)


def trace_on_a_gpu(line):
    """The trace of a rank on a GPU has the GPU's kernels and copies from CUPTI, each with its call; two ranks that NCCL
    connects also have NCCL's kernels, with the bytes that dpt-trace reports. Dropped records are counted: none."""
    with on_a_gpu(line):
        _, (trace,) = traced(line, "cuda", 1)
        show_device_work(line, trace)
        root, traces = traced(line, "cuda", 2)
        line.show("traces of two ranks", len(traces), "== 2", len(traces) == 2)
        show_collectives(line, root, traces)


def tracing_costs_little_on_a_gpu(line):
    """GPT-2 124M in bf16 on a GPU, 65,536 tokens a step: in one run, groups of 3 steps without a trace and with one
    take turns; the median of the times of groups with a trace over the mean of their neighbours is at most 1.02, and
    the weights are those of a run without traces."""
    with on_a_gpu(line):
        measure_cost.cost_in_turn(line, "one rank on a GPU", 1, LARGE)


def smi(*flags):
    done = subprocess.run(["nvidia-smi", *flags], capture_output=True, text=True, timeout=SMI_TIMEOUT_S)
    if done.returncode != 0:
        raise ClusterError(f"nvidia-smi {flags}: {done.stdout}{done.stderr}")
    return done.stdout


def paths_of_smi(text, count):
    """{(row, column): word} of the GPUs in `nvidia-smi topo -m`."""
    rows = [line.split() for line in re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()]
    return {(int(row[0][3:]), column): row[1 + column] for row in rows
            if row and re.fullmatch(r"GPU\d+", row[0]) and len(row) > count and row[1] != "GPU1"
            for column in range(count) if column != int(row[0][3:])}


def show_paths(line, gpus):
    """`gpus`: those of dpt-doctor, in the order of nvidia-smi."""
    theirs = paths_of_smi(smi("topo", "-m"), len(gpus))
    mine = {(i, k): gpus[i]["to"][gpus[k]["index"]]["link"] for i, k in theirs}
    apart = {pair: (mine[pair], theirs[pair]) for pair in theirs if mine[pair] != theirs[pair]}
    line.show(f"paths of {len(theirs)} pairs that differ from nvidia-smi's", apart or 0, "== 0", not apart)
    line.at_least("pairs compared", len(theirs), len(gpus) * (len(gpus) - 1))


def doctor_knows_the_gpus(line):
    """dpt-doctor lists the GPUs of nvidia-smi with names and bus ids, and the paths between them are those of
    `nvidia-smi topo -m`. No line about a GPU has failed."""
    with on_a_gpu(line):
        argv = [program("dpt-doctor"), "--json", "-"]
        line.command(argv)
        done = subprocess.run([str(a) for a in argv], capture_output=True, text=True, timeout=SMI_TIMEOUT_S)
    if done.returncode not in (0, 1):
        raise ClusterError(f"dpt-doctor: exit {done.returncode}\n{done.stdout}{done.stderr}")
    found = json.loads(done.stdout)
    listed = [tuple(word.strip() for word in each.split(","))
              for each in smi("--query-gpu=pci.bus_id,name", "--format=csv,noheader").strip().splitlines()]
    ours = {gpu["bus"].lower(): gpu for gpu in found["gpus"]}
    for bus, name in listed:
        gpu = ours.get(bus.lower()[-12:], {"name": "not found"})
        line.show(f"GPU {bus}", gpu["name"], f"== {name}", gpu["name"] == name)
    if len(listed) > 1 and all(bus.lower()[-12:] in ours for bus, _ in listed):
        show_paths(line, [ours[bus.lower()[-12:]] for bus, _ in listed])
    failed = [each["text"] for each in found["findings"] if each["section"] == "gpu" and each["level"] == "FAIL"]
    line.show("failed lines about GPUs", failed or 0, "== 0", not failed)


LINES_OF_MEASURE = [trace_on_a_gpu, tracing_costs_little_on_a_gpu, doctor_knows_the_gpus]
