"""dpt-bench memory --plan: for a user's config, by the formulas; nothing is started. Arguments: dpt-bench, a config."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH, CONFIG = sys.argv[1:3]


def plan(*flags):
    return subprocess.run([BENCH, "memory", *flags], capture_output=True, text=True, timeout=30)


with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "plan.json"
    done = plan("--plan", "1x8,4x8", "--config", CONFIG, "--set", "train.precision=bf16", "--json", str(out))
    assert done.returncode == 0, done.stderr
    rows = {(r["strategy"], r["nodes"]): r for r in json.loads(out.read_text())["rows"]}
    # 8 slots: further ranks stand by.
    whole, sharded = rows["ddp", 4]["tags"], rows["full_shard", 4]["tags"]
    assert rows["ddp", 4]["ranks"] == rows["full_shard", 4]["ranks"] == rows["ddp", 1]["ranks"] == 8
    assert "4x8  trains on at most 8 ranks, one a lane" in done.stdout, done.stdout
    assert "4x8  trains on at most 8 ranks, one a slot" in done.stdout, done.stdout
    assert "1x8  trains" not in done.stdout, done.stdout
    parameters = whole["moments"] // 8
    assert 124e6 < parameters < 125e6, parameters
    assert whole["weights"] == 2 * parameters and whole["masters"] == 4 * parameters
    assert 0 <= sharded["moments"] / (whole["moments"] / 8) - 1 < 0.01
    assert rows["ddp", 4]["node_bytes"] == 8 * rows["ddp", 4]["rank_bytes"]
    assert ("hybrid_shard", 1) not in rows and "hybrid_shard          1x8  refused:" in done.stdout, done.stdout
    assert whole["packed"] == 0  # a rank that computes one slot of a step packs nothing

    def more(*flags):
        done = plan("--config", CONFIG, "--set", "train.precision=bf16", "--json", str(out), *flags)
        assert done.returncode == 0, done.stderr
        return {r["strategy"]: r for r in json.loads(out.read_text())["rows"]}
    large = more("--plan", "4x8", "--set", "train.global_batch=128")  # 32 slots, 16 lanes
    assert large["full_shard"]["ranks"] == 32 and large["ddp"]["ranks"] == 16, large
    assert 0 <= large["full_shard"]["tags"]["moments"] / (whole["moments"] / 32) - 1 < 0.01
    assert large["full_shard+shadow"]["tags"]["shadow"] > 0 == large["full_shard"]["tags"]["shadow"]
    few = more("--plan", "1x4")
    assert few["ddp"]["tags"]["packed"] == 494223360 and few["zero2"]["tags"]["packed"] == 0, few
    assert more("--plan", "1x4", "--set", "cluster.pack_weights=off")["ddp"]["tags"]["packed"] == 0

for flags in (["--plan", "2"], ["--plan", "0x2"], ["--plan", "2x2,"], ["--plan", "2x2", "--set"], ["--config", CONFIG],
              ["--plan", "2x2", "--strategies", "none"], ["--plan", "2x2", "--set", "train.micro_batch=0"]):
    done = plan(*flags)
    assert done.returncode == 2 and done.stderr, (flags, done)
done = plan("--plan", "2x2", "--config", "/no/such/file")
assert done.returncode == 1 and done.stderr, done
