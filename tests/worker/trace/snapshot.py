"""A short run that writes a snapshot of each rank's memory, for test_memory_snapshot.py and test_memory_viz_peer.py."""

import json
import os
import re
import subprocess
from pathlib import Path

BIN = Path(os.environ["DPT_BIN"])
RECORDED = Path(__file__).resolve().parents[1] / "data" / "recorded"
TIMEOUT_S, RANKS, STEPS = 120, 2, 5


class Run:
    """A finished run of RANKS ranks on one node."""

    def __init__(self, folder, strategy, **more):
        folder.mkdir(parents=True, exist_ok=True)
        text = folder / "text.txt"
        text.write_text((RECORDED / "tiny.txt").read_text() * 40)
        sets = {"data.train": text, "log.dir": folder / "log", "train.steps": STEPS, "train.global_batch": 8,
                "train.micro_batch": 2, "train.seq_len": 64, "model.n_layer": 2, "cluster.gpus_per_node": RANKS,
                "cluster.device": "cpu", "log.memory_snapshot": "true", **strategy, **more}
        config = folder / "config.yaml"
        config.write_text("run: snapshot\n")
        argv = [BIN / "dpt-worker", "--config", config, "--nnodes", "1", "--node-id", "a"]
        for key, value in sets.items():
            argv += ["--set", f"{key}={value}"]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stdout + done.stderr
        self.said, self.log = done.stdout + done.stderr, folder / "log"
        self.hash = re.search(r"weights hash +([0-9a-f]+)", self.said)[1]

    def snapshot(self, rank):
        return self.log / "node-a" / f"rank-{rank}.memory.pickle"

    def record(self, rank):
        return json.loads((self.log / "node-a" / f"rank-{rank}.memory.json").read_text())

    def rank_log(self, rank):
        return (self.log / "node-a" / f"rank-{rank}.log").read_text()

    def summary(self):
        return json.loads((self.log / "summary.json").read_text())
