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
    whole, sharded = rows["ddp", 4]["tags"], rows["full_shard", 4]["tags"]
    parameters = whole["moments"] // 8
    assert 124e6 < parameters < 125e6, parameters
    assert whole["weights"] == 2 * parameters and whole["masters"] == 4 * parameters
    assert 0 <= sharded["moments"] / (whole["moments"] / 32) - 1 < 0.01
    assert rows["ddp", 4]["node_bytes"] == 8 * rows["ddp", 4]["rank_bytes"]
    assert rows["full_shard+shadow", 4]["tags"]["shadow"] > 0 == sharded["shadow"]
    assert ("hybrid_shard", 1) not in rows and "hybrid_shard          1x8  refused:" in done.stdout, done.stdout

for flags in (["--plan", "2"], ["--plan", "0x2"], ["--plan", "2x2,"], ["--plan", "2x2", "--set"], ["--config", CONFIG]):
    done = plan(*flags)
    assert done.returncode == 2 and done.stderr, (flags, done)
for flags in (["--strategies", "none"], ["--config", "/no/such/file"], ["--set", "train.micro_batch=0"]):
    done = plan("--plan", "2x2", *flags)
    assert done.returncode == 1 and done.stderr, (flags, done)
