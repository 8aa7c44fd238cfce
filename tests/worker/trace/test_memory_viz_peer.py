"""torch.cuda._memory_viz, PyTorch's code behind pytorch.org/memory_viz, reads a snapshot: its sums are those of the
rank's account, its trace names the blocks, and its pages contain the snapshot.

Run by ctest: pytest test_memory_viz_peer.py, with DPT_BIN naming the programs. DPT_TORCH_PYTHON names a Python that has
torch (python3 -m venv DIR && DIR/bin/pip install torch; DIR/bin/python).
"""

import json
import os
import subprocess
import sys

import pytest

from snapshot import TIMEOUT_S, Run

PYTHON = os.environ.get("DPT_TORCH_PYTHON") or sys.executable

REPORT = """
import json, pickle, sys
from torch.cuda import _memory_viz as viz
with open(sys.argv[1], "rb") as file:
    data = pickle.load(file)
lines = []
def flamegraph(text):
    lines.extend(text.splitlines())
    return text
viz.memory(data, format_flamegraph=flamegraph)
viz.segments(data, format_flamegraph=lambda text: text)
pages = [viz.trace_plot(data), viz.trace_plot(data, plot_segments=True), viz.segment_plot(data)]
print(json.dumps({"summary": viz.segsum(data), "trace": viz.trace(data), "memory": lines,
                  "pages": [len(page) for page in pages]}))
"""


def has_torch():
    try:
        return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True, timeout=TIMEOUT_S).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not has_torch(), reason="PyTorch is not installed (DPT_TORCH_PYTHON)")


def human(size):
    for unit in ("", "Ki", "Mi", "Gi"):
        if size < 1024:
            return f"{size:3.1f}{unit}B"
        size /= 1024
    return f"{size:.1f}TiB"


@pytest.mark.parametrize("strategy", [{"strategy.name": "ddp"},
                                      {"strategy.name": "fsdp", "strategy.sharding": "full_shard"}])
def test_memory_viz_reads_a_snapshot(tmp_path, strategy):
    run = Run(tmp_path, strategy)
    done = subprocess.run([PYTHON, "-c", REPORT, run.snapshot(0)], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr
    report, record = json.loads(done.stdout.splitlines()[-1]), run.record(0)
    assert f"total_reserved: {human(record['reserved']['bytes'])}" in report["summary"], report["summary"]
    moments = sum(int(line.rsplit(" ", 1)[1]) for line in report["memory"] if "moment:0:transformer." in line)
    assert 0.8 * record["tags"]["moments"]["bytes"] < moments <= record["tags"]["moments"]["bytes"], report["memory"]
    assert any("active_allocated;weights:0:transformer.h.1." in line for line in report["memory"])
    assert "cudaMalloc" in report["trace"] and "cudaFree" in report["trace"], report["trace"]
    assert min(report["pages"]) > run.snapshot(0).stat().st_size  # base64 of it is within
