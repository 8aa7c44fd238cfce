"""dpt-plan beside real ranks: each tag of the plan is the formula that a rank reports for itself, and, where formulas
are exact, the bytes that the rank counts. Argument: dpt-plan; dpt-worker is beside it."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

PLAN = Path(sys.argv[1])
EXACT = ("weights", "masters", "moments", "gradient", "sums", "slot_gradients", "gathered", "shadow", "activations",
         "scratch")
TEXT = b"The quick brown fox jumps over the lazy dog. " * 400

with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    (folder / "text").write_bytes(TEXT)
    for strategy, label in (("{name: ddp}", "ddp"), ("{name: fsdp, sharding: full_shard}", "full_shard")):
        config = folder / f"{label}.yaml"
        config.write_text(f"""
run: plan-{label}
cluster: {{nnodes: 1, gpus_per_node: 2, device: cpu, threads: 1, pack_weights: off}}
model: {{n_layer: 2, n_head: 2, n_embd: 64, context: 32, vocab: 256}}
data: {{kind: text, train: "{folder}/text", tokenizer: bytes}}
train: {{steps: 2, global_batch: 4, micro_batch: 1, seq_len: 32}}
optimizer: {{warmup_steps: 0}}
strategy: {strategy}
checkpoint: {{dir: null, every_steps: 0}}
log: {{dir: "{folder}/{label}"}}
""")
        subprocess.run([PLAN.with_name("dpt-worker"), "--config", config, "--nnodes", "1"], check=True, timeout=60,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, "TMPDIR": name})
        done = subprocess.run([PLAN, "--config", config, "--strategies", label, "--json", "-"], check=True,
                              capture_output=True, text=True, timeout=60)
        planned = json.loads(done.stdout)["strategies"][0]
        ranks = [json.loads(path.read_text()) for path in sorted((folder / label).glob("node-*/rank-*.memory.json"))]
        assert len(ranks) == planned["ranks"] == 2 and planned["own"], (ranks, planned)
        assert planned["rank_bytes"] == max(rank["formula"] for rank in ranks), (planned, ranks)
        most = max(ranks, key=lambda rank: rank["formula"])
        assert planned["machine_bytes"] == sum(rank["formula"] for rank in ranks)
        for tag, value in planned["tags"].items():
            assert value == most["tags"].get(tag, {"formula": 0})["formula"], (label, tag, value, most["tags"])
            if tag in EXACT:
                assert value == most["tags"].get(tag, {"peak": 0})["peak"], (label, tag, value, most["tags"])
