"""Training steps of each model family, in turn with PyTorch's steps, eager and compiled."""

import json
import shutil
import statistics
import subprocess

from accept.beside import THREADS, peer_python, run_alone, run_peer
from cluster import ROOT, program

PEER = ROOT / "tests" / "accept" / "peer_speed.py"
ROUNDS, STEPS, WARM_UP = 3, 12, 3
SHARE_OF_TORCH = 0.8
BATCH, LENGTH, IMAGES = 4, 64, 32
LABELS = {"model.labels": 5, "data.kind": "classification"}
SMOLLM2 = {"num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3, "hidden_size": 576,
           "intermediate_size": 1536, "max_position_embeddings": 8192, "vocab_size": 49152,
           "tie_word_embeddings": True}

# Without sizes, which would override a preset's.
CONFIG = """run: speed
cluster: {nnodes: 1, device: cpu, timeout_s: 5}
train: {steps: 1, global_batch: 1}
"""

# A family: dpt's settings, and what the peer builds.
FAMILIES = {
    "gpt2-124m": ({"model.name": "gpt2", "model.preset": "gpt2-124m"}, {"network": "gpt2", "labels": 0, "config": {}}),
    "smollm2-135m": ({"model.name": "llama", "model.preset": "smollm2-135m"},
                     {"network": "llama", "labels": 0, "config": SMOLLM2}),
    "smollm2-135m over labels": ({"model.name": "llama", "model.preset": "smollm2-135m", **LABELS},
                                 {"network": "llama", "labels": 5, "config": SMOLLM2}),
    "resnet18": ({"model.name": "resnet", "model.preset": "resnet18", "model.stem": "cifar", "model.labels": 10,
                  "data.kind": "cifar10", "data.augment": "none"},
                 {"network": "resnet18", "labels": 10}),
}


def write_data(folder):
    """Writes the config and random data: a text, labelled texts of one length, and images."""
    (folder / "speed.yaml").write_text(CONFIG)
    text = bytes(33 + i * i % 90 for i in range(BATCH * LENGTH * 4))
    (folder / "text").write_bytes(text)
    rows = "".join(f"{i % 5}\t{text[i:i + LENGTH].decode()}\n" for i in range(BATCH * 4))
    (folder / "table.tsv").write_text("label\ttext\n" + rows.replace('"', "'"))
    (folder / "images.bin").write_bytes(b"".join(
        bytes([i % 10]) + bytes((i * 7 + j * j) % 256 for j in range(3072)) for i in range(IMAGES)))


def seconds_of(steps):
    return statistics.median(steps[WARM_UP:])


def dpt_step(folder, name, sets):
    images = sets.get("data.kind") == "cifar10"
    data = {"cifar10": "images.bin", "classification": "table.tsv"}.get(sets.get("data.kind"), "text")
    batch = IMAGES if images else BATCH
    common = {"data.train": folder / data, "train.global_batch": batch, "train.micro_batch": batch,
              "train.steps": STEPS}
    if not images:
        common |= {"data.tokenizer": "bytes", "train.seq_len": LENGTH, "model.dropout": 0}
    (folder / name).mkdir()
    outputs, checkpoint = run_alone(folder / name, {**common, **sets}, folder / "speed.yaml")
    shutil.rmtree(checkpoint)  # of a large model
    return seconds_of([line["step_ms"] / 1000 for line in outputs.metrics() if "step_ms" in line])


def torch_step(spec, compiled):
    images = spec["network"].startswith("resnet")
    spec = {**spec, "batch": IMAGES if images else BATCH, "length": 32 if images else LENGTH, "steps": STEPS,
            "threads": THREADS, "compile": compiled}
    found = json.loads(run_peer(PEER, json.dumps(spec))[0])
    return seconds_of(found["seconds"]), found["flops"]


def product_rate(folder):
    """GFLOP/s of dpt's products for the fastest shape."""
    path = folder / "gemm.json"
    subprocess.run([program("dpt-bench"), "gemm", "--threads", str(THREADS), "--json", path], check=True,
                   capture_output=True)
    return json.loads(path.read_text())["gflops"]


def families_beside_torch(line):
    """A training step of each family (GPT-2 124M, SmolLM2-135M, the same over labels, ResNet-18 of small images) in
    fp32 with two threads, in turn with PyTorch's eager and compiled: at least 0.8 of the rate of the faster one. The
    share of the product rate is reported."""
    peer_python("transformers", "torchvision")
    write_data(line.folder)
    line.command(f"dpt-worker and $DPT_TORCH_PYTHON {PEER.relative_to(ROOT)}, in turn")
    peak = product_rate(line.folder)
    for name, (sets, spec) in FAMILIES.items():
        ours, eager, compiled = [], [], []
        for turn in range(line.repeat(ROUNDS)):
            ours.append(dpt_step(line.folder, f"{name}-{turn}".replace(" ", "-"), sets))
            eager.append(torch_step(spec, False)[0])
            seconds, flops = torch_step(spec, True)
            compiled.append(seconds)
        best = min(statistics.median(eager), statistics.median(compiled))
        mine = statistics.median(ours)
        line.note(f"{name}: {mine * 1e3:.0f} ms a step; PyTorch {statistics.median(eager) * 1e3:.0f} ms eager, "
                  f"{statistics.median(compiled) * 1e3:.0f} ms compiled; {flops / mine * 1e-9:.1f} GFLOP/s, "
                  f"{flops / mine * 1e-7 / peak:.0f}% of the product rate")
        line.at_least(f"{name}: dpt's rate over PyTorch's best", round(best / mine, 3), SHARE_OF_TORCH)
