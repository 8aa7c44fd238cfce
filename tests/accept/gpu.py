"""The promises of `device: cuda` on one GPU. The programs are those of preset cuda (build-cuda/bin, or --bin), with the
test programs beside them. PyTorch is that of $DPT_TORCH_PYTHON, else of `python3`. A line without a GPU, PyTorch or
compute-sanitizer is not run, and says so."""

import json
import os
import random
import shutil
import struct
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

from accept.harness import NotRun
from cluster import ROOT, Cluster, ClusterError, bin_dir, program, wait_until
from processes import proc_fds, proc_threads, send_signal

TOKENS_PER_STEP = 524_288
RATE_124M = 450_000  # tokens/s of one NVIDIA H200; another GPU is named beside its figure
PEER = ROOT / "tests" / "gpu" / "peer_pytorch.py"
TRAIN_TIMEOUT_S, TEST_TIMEOUT_S, PEER_TIMEOUT_S, RECOVER_TIMEOUT_S = 300, 300, 400, 900
LOSS_STEPS, LOSS_WARMUP, LOSS_BAR = 50, 50, 0.005
LOSS_RATE = 3e-4 * LOSS_STEPS / 700  # after them, by the warm-up of configs/gpt2-124m.yaml
CYCLES = 50
TOO_MANY = 1000  # sequences of 1,024 tokens: 280 GB of activations
# NCCL takes several ranks of one GPU when each seems to be on a machine of its own.
APART = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1", "NCCL_P2P_DISABLE": "1",
         "NCCL_SHM_DISABLE": "1", "NCCL_NVLS_ENABLE": "0", "NCCL_RAS_ENABLE": "0", "NCCL_MAX_CTAS": "2"}


def need_gpu(line):
    """Prints the GPU; raises NotRun if there is none."""
    if not os.environ.get("DPT_BIN"):
        os.environ["DPT_BIN"] = str(ROOT / "build-cuda" / "bin")
    smi = shutil.which("nvidia-smi")
    look = smi and subprocess.run([smi, "--query-gpu=name,driver_version", "--format=csv,noheader"],
                                  capture_output=True, text=True)
    if not look or look.returncode != 0 or not look.stdout.strip():
        raise NotRun("there is no GPU here")
    line.note(look.stdout.strip().splitlines()[0])


def test_program(name):
    for folder in (bin_dir(), bin_dir().parent / "tests"):
        if (folder / name).exists():
            return folder / name
    raise ClusterError(f"{name} is not built; run: deploy/build cuda")


def run(line, argv, timeout, env=None):
    """Runs a program to its end; returns its output and its errors. On a failure raises ClusterError with them. A
    variable of `env` that is None is removed."""
    argv = [str(a) for a in argv]
    line.command(argv)
    env = {name: value for name, value in dict(os.environ, **(env or {})).items() if value is not None}
    done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout, env=env)
    if done.returncode != 0:
        raise ClusterError(f"{argv[0]}: exit {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return done.stdout, done.stderr


def bench(line, name, *flags, timeout=TRAIN_TIMEOUT_S):
    path = line.folder / f"{name}.json"
    said, _ = run(line, [program("dpt-bench"), name, *flags, "--json", path], timeout)
    print("             " + said.strip().replace("\n", "\n             "))
    return json.loads(path.read_text())


def peer(line, *flags):
    """PyTorch's report. PyTorch uses its own libraries of CUDA."""
    python = os.environ.get("DPT_TORCH_PYTHON", "python3")
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode != 0:
        raise NotRun(f"{python} has no PyTorch (DPT_TORCH_PYTHON names another)")
    said, _ = run(line, [python, PEER, *flags], PEER_TIMEOUT_S, {"LD_LIBRARY_PATH": None})
    return json.loads(said.strip().splitlines()[-1])


def ops(line):
    """All ops within tolerance in f32, bf16 and fp16, on fresh random inputs, and wrong ones noticed; first-step
    gradients of GPT-2 124M, tensor by tensor, against the CPU device: relative L2 1e-4 (fp32), 1e-2 (bf16)."""
    need_gpu(line)
    tests = (["test_gpu_ops"], ["test_gpu_gradients", "124m"], ["test_gpu_gradients"], ["test_gpu_device"],
             ["test_gpu_range"], ["test_gpu_rows"])
    with ThreadPoolExecutor(len(tests)) as pool:
        runs = [pool.submit(run, line, [test_program(name), *flags], TEST_TIMEOUT_S, {"DPT_TEST_GPU": "1"})
                for name, *flags in tests]
    for test, done in zip(tests, runs, strict=True):
        _, said = done.result()
        line.show(" ".join(test), "passed", "passed", True)
        if test[0] == "test_gpu_gradients":
            line.note("\n             ".join(said.strip().splitlines()))


def write_tokens(path, sequences, seq, vocab, seed):
    """A shard of the .bin format; each step reads all of it. Few tokens are frequent, as in texts."""
    draw = random.Random(seed)
    tokens = [int(vocab ** draw.random()) - 1 for _ in range(sequences * seq + 1)]
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))


def trained(line, root, sets, timeout):
    """One worker from start to end; its losses."""
    with Cluster(root, config=ROOT / "configs" / "gpt2-124m.yaml", sets=sets) as cluster:
        cluster.start_server()
        worker = cluster.start_worker("a")
        line.command(worker.popen.args)
        if worker.wait(timeout) != 0:
            raise ClusterError(worker.log_tail())
        return [m["loss"] for m in cluster.metrics()], sorted(worker.checkpoint_dir.glob("step-*"))


def losses_beside_pytorch(line):
    """50 bf16 steps of GPT-2 124M beside PyTorch, on the same weights and data: every loss within 0.5%. The learning
    rate rises as in configs/gpt2-124m.yaml. With the full rate after 10 steps the loss rises to 16.5 at step 29 in both
    programs, and roundings decide how far."""
    need_gpu(line)
    compare_losses(line, "cuda", {"model.preset": "gpt2-124m"}, (12, 12, 768, 1024, 50257), batch=8, sequences=32,
                   seq=1024)


def compare_losses(line, device, model, sizes, batch, sequences, seq, precision="bf16"):
    tokens = line.folder / "tokens.bin"
    write_tokens(tokens, sequences, seq, sizes[-1], line.seed)
    sets = dict(model, **{"cluster.device": device, "cluster.nnodes": 1, "data.train": tokens, "data.val": "null",
                          "train.eval_every": 0, "train.global_batch": sequences, "train.micro_batch": batch,
                          "train.seq_len": seq, "train.precision": precision, "optimizer.schedule": "constant",
                          "optimizer.warmup_steps": LOSS_WARMUP, "optimizer.lr": LOSS_RATE, "optimizer.min_lr": 0,
                          "checkpoint.every_steps": 0})
    # A step that changes nothing leaves the initial weights in its checkpoint.
    still = {"train.steps": 1, "optimizer.lr": 0, "optimizer.warmup_steps": 0}
    _, checkpoints = trained(line, line.folder / "initial", dict(sets, **still), TRAIN_TIMEOUT_S)
    mine, _ = trained(line, line.folder / "run", dict(sets, **{"train.steps": LOSS_STEPS, "checkpoint.dir": "null"}),
                      TRAIN_TIMEOUT_S)
    layers, heads, embd, context, vocab = sizes
    theirs = peer(line, "losses", "--weights", checkpoints[-1], "--tokens", tokens, "--steps", LOSS_STEPS,
                  "--batch", batch, "--seq", seq, "--layers", layers, "--heads", heads, "--embd", embd,
                  "--context", context, "--vocab", vocab, "--device", device, "--precision", precision,
                  "--warmup", LOSS_WARMUP, "--lr", LOSS_RATE, "--compile", "on" if device == "cuda" else "off")
    off = [abs(a / b - 1) for a, b in zip(mine, theirs["losses"], strict=True)]
    worst = off.index(max(off))
    line.note(f"torch {theirs['torch']}; losses {mine[0]:.4f} … {mine[-1]:.4f}, its {theirs['losses'][0]:.4f} … "
              f"{theirs['losses'][-1]:.4f}; the worst is step {worst + 1}: {mine[worst]:.4f} and "
              f"{theirs['losses'][worst]:.4f}")
    line.at_most(f"worst of {len(off)} losses, relative to PyTorch's", max(off), LOSS_BAR)


def gpu_memory_used():
    """MiB of the GPU that are in use by any process, because in a container nvidia-smi does not separate processes."""
    look = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"],
                          capture_output=True, text=True)
    if look.returncode != 0 or not look.stdout.split()[0].isdigit():
        raise ClusterError(f"nvidia-smi does not print the used memory: {look.stdout}{look.stderr}")
    return int(look.stdout.split()[0])


def ranks_on_one_gpu(line):
    """Several NCCL ranks on one GPU: ddp, full_shard + shadow, hybrid_shard; kill -9 of a rank inside an all-reduce;
    survivors rebuild, 0 steps lost, one hash; 50 rebuild cycles with GPU memory, threads and descriptors flat."""
    need_gpu(line)
    run(line, [test_program("test_gpu_rank")], TEST_TIMEOUT_S, {"DPT_TEST_GPU": "1"})
    line.show("test_gpu_rank", "passed", "passed", True)
    for strategy in ("ddp", "full_shard+shadow", "hybrid_shard"):
        try:
            found = bench(line, "recover", "--cuda", "--strategy", strategy, "--trials", line.repeat(20), "--ranks", 4,
                          "--kills", "--timeout-s", 10, timeout=RECOVER_TIMEOUT_S)
        except (ClusterError, subprocess.TimeoutExpired) as failure:
            line.show(f"{strategy} of 4 ranks on one GPU", str(failure).strip().splitlines()[-1], "trains", False)
            line.note(str(failure).strip().replace("\n", "\n             "))
            continue
        for what in ("hangs", "steps_lost", "hash_differences"):
            line.show(f"{strategy}: {what}", found[what], "== 0", found[what] == 0)
    flat_over_cycles(line, "cuda")


def flat_over_cycles(line, device):
    sets = {"cluster.device": device, "cluster.timeout_s": 10, "train.steps": 100_000_000,
            "optimizer.schedule": "constant", "checkpoint.every_steps": 0}
    with Cluster(line.folder / "cycles", sets=sets) as cluster:
        cluster.start_server()
        nodes = [cluster.start_worker(name, env=dict(APART, NCCL_HOSTID=name)) for name in ("a", "b")]
        cluster.wait_world(2, TEST_TIMEOUT_S)
        survivor, looks = nodes[0].rank_pids()[0], []
        for _ in range(max(2, line.repeat(CYCLES))):
            before, victim = cluster.events()[-1]["generation"], nodes[1].rank_pids()[0]
            send_signal(victim, 9)
            wait_until("both train again", lambda: cluster.events()[-1]["generation"] > before + 1 and
                       cluster.metrics()[-1]["world_size"] == 2, TEST_TIMEOUT_S, cluster.log_tails)
            looks.append({"MiB on the GPU": gpu_memory_used() if device == "cuda" else 0,
                          "threads": proc_threads(survivor), "descriptors": len(proc_fds(survivor))})
        now = nodes[0].rank_pids()[0]
        line.show("the survivor's process", now, f"== {survivor}", now == survivor)
        lost = sum(event["steps_lost"] for event in cluster.events())
        line.show(f"steps lost in {len(looks)} cycles", lost, "== 0", lost == 0)
        warm = max(1, len(looks) // 5)
        for kind in looks[0]:
            before, after = (max(look[kind] for look in part) for part in (looks[:warm], looks[warm:]))
            line.at_most(f"survivor, {kind} at most after cycle {warm} of {len(looks)}", after, before)


def speed(line):
    """GPT-2 124M bf16, T=1024, 524,288 tokens a step, canonical order, deterministic backward: >= 450,000 tokens/s (of
    an H200); beside it PyTorch (same model, torch.compile, fused AdamW, SDPA). Also 350M and 1558M, with a quarter and
    a sixteenth of the tokens a step. Time by kernels."""
    need_gpu(line)
    seq = 1024
    for preset, layers, heads, embd, batch, part in (("gpt2-124m", 12, 12, 768, 32, 1),
                                                     ("gpt2-350m", 24, 16, 1024, 16, 4),
                                                     ("gpt2-1558m", 48, 25, 1600, 4, 16)):
        slots = TOKENS_PER_STEP // part // seq // batch
        steps = 8 if preset == "gpt2-124m" else 6
        size = ["--batch", batch, "--seq", seq, "--slots", slots, "--steps", steps]
        train = ["train", "--device", "cuda", "--precision", "bf16", "--preset", preset, *size]
        mine = bench(line, *train)
        line.note(f"{preset}: {mine['tokens_per_s']:,.0f} tokens/s, MFU {100 * mine.get('mfu', 0):.1f} %")
        if preset == "gpt2-124m":
            line.at_least("gpt2-124m, tokens/s", round(mine["tokens_per_s"]), RATE_124M)
            bench(line, *train, "--op-times", "on")
        theirs = peer(line, "speed", *size, "--layers", layers, "--heads", heads, "--embd", embd,
                      "--compile", "parts" if preset == "gpt2-1558m" else "on")
        line.note(f"{preset}: PyTorch {theirs['torch']} {theirs['tokens_per_s']:,.0f} tokens/s, peak "
                  f"{theirs['peak_bytes'] / 2**30:.1f} GiB; ours {mine['device_peak_bytes'] / 2**30:.1f} GiB")
        share = mine["tokens_per_s"] / theirs["tokens_per_s"]
        line.at_least(f"{preset}, share of PyTorch's tokens/s", round(share, 3), 1)


def peak_memory(line):
    """Peak memory of the device is within 2% of the formula: P (w + k + 8) for the state, 4 P for the lanes' sum,
    activations and scratch of a micro-batch, workspace of the products and the head. A batch that does not fit ends in
    `OOM at batch_size=`."""
    need_gpu(line)
    found = bench(line, "train", "--device", "cuda", "--precision", "bf16", "--seq", 1024, "--slots", 1, "--steps", 6,
                  "--batch", f"8,32,{TOO_MANY}")
    for report in found["runs"]:
        if "oom" in report:
            line.show(f"batch {report['batch']}", "OOM", "OOM", report["batch"] == TOO_MANY)
            continue
        elements = -(-report["parameters"] // 1024) * 1024
        formula = elements * (2 + 4 + 8) + 4 * elements + report["saved_bytes"] + report["scratch_bytes"]
        formula += report["device_workspace_bytes"]
        peak = report["device_peak_bytes"]
        line.at_most(f"batch {report['batch']}: peak {peak / 2**20:.0f} MiB, formula {formula / 2**20:.0f} MiB, apart",
                     round(abs(peak / formula - 1), 4), 0.02)


def sanitizer(line):
    """compute-sanitizer memcheck and racecheck are clean on the op tests."""
    need_gpu(line)
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        raise NotRun("there is no compute-sanitizer here")
    for check in ("memcheck", "racecheck"):
        for name in ("test_gpu_range", "test_gpu_ops"):
            began = time.monotonic()
            said, _ = run(line, [tool, "--tool", check, "--error-exitcode", 3, test_program(name)], TEST_TIMEOUT_S,
                          {"DPT_TEST_GPU": "1"})
            line.show(f"{check}, {name}", said.strip().splitlines()[-1], "no error", True)
            line.note(f"it took {time.monotonic() - began:.0f} s")


LINES = [ops, losses_beside_pytorch, ranks_on_one_gpu, speed, peak_memory, sanitizer]
