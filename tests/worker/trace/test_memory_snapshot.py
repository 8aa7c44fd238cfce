"""Snapshots of memory for pytorch.org/memory_viz, read with Python's pickle: every allocation of the rank's account is
a segment, every tensor of the model is a block of the weights and of both moments, and the trace leads from nothing to
the segments. Also the lines about memory and the cost of a run.

Run by ctest: pytest test_memory_snapshot.py, with DPT_BIN naming the programs.
"""

import pickle
import re

import pytest

from snapshot import RANKS, STEPS, Run

STRATEGIES = {"ddp": {"strategy.name": "ddp", "cluster.pack_weights": "on"},
              "full_shard": {"strategy.name": "fsdp", "strategy.sharding": "full_shard", "train.precision": "bf16"}}
TENSORS = {"transformer.wte.weight", "transformer.wpe.weight", "transformer.ln_f.weight", "transformer.ln_f.bias",
           *(f"transformer.h.{layer}.{name}.{kind}" for layer in range(2) for kind in ("weight", "bias")
             for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj"))}


@pytest.fixture(scope="module", params=STRATEGIES)
def run(request, tmp_path_factory):
    return Run(tmp_path_factory.mktemp(request.param), STRATEGIES[request.param],
               **{"log.memory_every": 2, "log.price_per_hour": 1.8})


def loaded(run, rank):
    with open(run.snapshot(rank), "rb") as file:
        return pickle.load(file)


def blocks_of(snapshot):
    """(segment, address, block) of every block in use."""
    for segment in snapshot["segments"]:
        address = segment["address"]
        for block in segment["blocks"]:
            assert block["address"] == address, (segment["address"], block)
            if block["state"] == "active_allocated":
                yield segment, address, block
            address += block["size"]
        assert address == segment["address"] + segment["total_size"], segment


def test_segments_are_the_account(run):
    for rank in range(RANKS):
        snapshot, record = loaded(run, rank), run.record(rank)
        assert sum(segment["total_size"] for segment in snapshot["segments"]) == record["reserved"]["bytes"]
        active = {}
        for segment, _, block in blocks_of(snapshot):
            assert segment["device"] == 0 and 0 < block["requested_size"] <= block["size"], block
            purpose = block["frames"][0]["filename"]
            active[purpose] = active.get(purpose, 0) + block["requested_size"]
        tags = record["tags"]
        for tag in ("activations", "scratch", "workspace", "comm", "data"):
            assert active.get(tag, 0) == tags[tag]["bytes"], (tag, active, tags)
        # Tensors without the gaps between them: less than the allocations, which are padded to blocks.
        moments = active["first moment"] + active["second moment"]
        assert 0.8 * tags["moments"]["bytes"] < moments <= tags["moments"]["bytes"], (active, tags)
        for segment in snapshot["segments"]:
            assert segment["allocated_size"] == segment["active_size"] <= segment["total_size"], segment
            assert segment["requested_size"] == sum(
                block["requested_size"] for block in segment["blocks"]), segment


def test_blocks_are_named_by_tensor(run):
    """All tensors are in the moments of the ranks together; a part of a tensor has its elements behind its name."""
    elements = {}
    for rank in range(RANKS):
        for _, _, block in blocks_of(loaded(run, rank)):
            frame, = block["frames"]
            if frame["filename"] == "first moment":
                name, _, part = frame["name"].partition(" ")
                elements.setdefault(name, []).append((part, block["requested_size"] // 4))
    assert set(elements) == TENSORS
    for name, parts in elements.items():
        for part, count in parts:
            first, end = map(int, re.fullmatch(r"\[(\d+):(\d+)\]", part).groups()) if part else (0, count)
            assert end - first == count, (name, part, count)
    whole = run.record(0)["parameters"]
    copies = RANKS if "ddp" in str(run.log) else 1
    assert sum(count for parts in elements.values() for _, count in parts) == whole * copies


def test_weights_and_packed_forms_have_tensors(run):
    names = {}
    for _, _, block in blocks_of(loaded(run, 0)):
        frame, = block["frames"]
        names.setdefault(frame["filename"], set()).add(frame["name"].partition(" ")[0])
    assert names["weights"] <= TENSORS and len(names["weights"]) > 4, names["weights"]
    if "ddp" in str(run.log):
        assert names["weights"] == TENSORS == names["gradient"], names
        assert "transformer.h.1.mlp.c_fc.weight" in names["packed"], names
    else:
        assert names["masters"] == names["first moment"], names


def test_trace_leads_to_the_segments(run):
    """Follows the events forwards: an address is used once at a time, and what is left is what the segments have."""
    for rank in range(RANKS):
        snapshot = loaded(run, rank)
        trace, = snapshot["device_traces"]
        segments, blocks, before = {}, {}, 0
        for event in trace:
            action, address, size = event["action"], event["addr"], event["size"]
            assert event["stream"] == 0 and event["time_us"] >= before and event["frames"], event
            before = event["time_us"]
            if action == "segment_alloc":
                assert address not in segments, event
                segments[address] = size
            elif action == "alloc":
                assert address not in blocks, event
                blocks[address] = size
            elif action == "free_requested":
                assert address in blocks, event
            elif action == "free_completed":
                assert blocks.pop(address) == size, event
            else:
                assert action == "segment_free" and segments.pop(address) == size, event
        assert segments == {segment["address"]: segment["total_size"] for segment in snapshot["segments"]}
        assert blocks == {address: block["requested_size"] for _, address, block in blocks_of(snapshot)}


def test_lines_while_the_run_goes_on(run):
    """A line after the first step and after every second one, in MB of 2^20 bytes; the table at the end."""
    for rank in range(RANKS):
        said, record = run.rank_log(rank), run.record(rank)
        number = run.record(rank)["rank"]
        lines = re.findall(rf"step=(\d+): \[Rank {number}\] model=(\S+) grad=(\S+) optim=(\S+) alloc=(\S+) "
                           r"reserved=(\S+) peak_alloc=(\S+) peak_reserved=(\S+)", said)
        assert [int(line[0]) + 1 for line in lines] == [1, 2, 4], said
        model, grad, optim, alloc, reserved, peak, peak_reserved = map(float, lines[-1][1:])
        tags = {tag: use["bytes"] / 2**20 for tag, use in record["tags"].items()}
        assert abs(model - tags["weights"] - tags["gathered"] - tags["packed"]) < 0.1, (lines, tags)
        assert abs(grad - tags["gradient"] - tags["sums"] - tags["slot_gradients"]) < 0.1, (lines, tags)
        assert abs(optim - tags["masters"] - tags["moments"]) < 0.1, (lines, tags)
        assert abs(alloc - record["counted"]["bytes"] / 2**20) < 0.1, (lines, record)
        assert alloc <= reserved <= peak_reserved and alloc <= peak, lines
        table = said[said.index("Allocated vs Estimated"):]
        found = re.search(r": all +(\S+) +(\S+) +\S+ % +(\S+)\n", table)
        assert abs(float(found[1]) - record["formula"] / 2**20) < 0.06, table
        assert abs(float(found[3]) - record["counted"]["peak"] / 2**20) < 0.06, table
        assert re.search(r": true peak +(\S+)\n", table), table


def test_cost_is_in_the_summary(run):
    summary = run.summary()
    assert abs(summary["node_hours"] * 3600 - summary["total_s"]) < 1, summary
    assert abs(summary["dollars"] / (1.8 * summary["node_hours"]) - 1) < 1e-6, summary
    assert abs(summary["dollars_per_1m_tokens"] * summary["tokens"] / 1e6 / summary["dollars"] - 1) < 1e-6, summary
    assert re.search(r"cost +\$\S+ for \S+ node-hours, \$\S+ per 1M tokens", run.said), run.said


def test_snapshot_changes_no_bit_and_is_off_by_default(run, tmp_path):
    strategy = STRATEGIES["ddp" if "ddp" in str(run.log) else "full_shard"]
    plain = Run(tmp_path, strategy, **{"log.memory_snapshot": "false"})
    assert plain.hash == run.hash
    assert not plain.snapshot(0).exists() and "[Rank 0]" not in plain.rank_log(0)
    assert "Allocated vs Estimated" not in plain.rank_log(0)
    assert "dollars" not in plain.summary() and "node-hours" not in plain.said


def test_lost_snapshot_is_said(tmp_path):
    """A snapshot that cannot be written: the run ends well, and the rank says so."""
    taken = tmp_path / "log" / "node-a" / "rank-0.memory.pickle"
    taken.mkdir(parents=True)
    lost = Run(tmp_path, STRATEGIES["ddp"])
    assert re.search(r"the snapshot 'rank-0.memory.pickle' of this rank's memory is lost: \S+", lost.rank_log(0))
    assert lost.snapshot(1).is_file()


def test_steps_are_as_many_as_asked_for(run):
    assert run.summary()["steps"] == STEPS
