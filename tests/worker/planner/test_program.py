"""dpt-plan as people use it: figures that courses print, the page, the JSON, and wrong input. Arguments: dpt-plan, the
folder of configs."""

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

PLAN, CONFIGS = sys.argv[1], Path(sys.argv[2])
GB = 10**9


def run(*flags):
    return subprocess.run([PLAN, *flags], capture_output=True, text=True, timeout=60)


def page(*flags):
    done = run(*flags)
    assert done.returncode == 0 and done.stderr == "", (flags, done)
    return done.stdout


def plan(*flags):
    return json.loads(page(*flags, "--json", "-"))


def rows(document):
    return {row["strategy"]: row for row in document["strategies"]}


def words(text, first):
    """The line that begins with these words, without them."""
    return next(line[len(first):].split() for line in text.splitlines() if line.startswith(first))


# 70B on 4 ranks: 560 + 560 + 1,120 = 2,240 GB in numbers of 8 bytes, 560 GB a rank; 280 and 140 GB in 4 and 2 bytes.
text = page("--params", "70e9", "--ranks", "4")
assert words(text, "8 bytes (fp64)") == ["560", "560", "1,120", "2,240", "560", "8,960"], text
assert words(text, "4 bytes (fp32)") == ["280", "280", "560", "1,120", "280", "4,480"], text
assert words(text, "2 bytes (bf16)") == ["140", "140", "280", "560", "140", "2,240"], text
assert words(text, "mixed precision") == ["140", "140", "840", "1,120", "280", "4,480"], text
document = plan("--params", "70B", "--ranks", "4")
eight, four, two, _ = document["textbook"]
assert [eight[key] for key in ("weights_bytes", "gradients_bytes", "optimizer_bytes", "copy_bytes", "shard_bytes")] == \
    [560 * GB, 560 * GB, 1120 * GB, 2240 * GB, 560 * GB]
assert four["weights_bytes"] == 280 * GB and two["weights_bytes"] == 140 * GB
assert abs(document["parameters"] / 70e9 - 1) < 1e-4  # the model that dpt's accounting is of

# GPT-3 in fp32: 700 GB of weights.
assert plan("--params", "175B")["textbook"][1]["weights_bytes"] == 700 * GB

# 2e12 tokens at 100,000 tokens a second: 231 days.
timed = ["--params", "70B", "--tokens", "2e12", "--tokens-per-s", "100K", "--strategies", "full_shard"]
assert "  231 days\n" in page(*timed)
assert abs(plan(*timed)["time"]["days"] - 231.4815) < 1e-3
priced = plan(*timed, "--machines", "2", "--price", "30")["time"]
assert abs(priced["price"] - 231.48148 * 24 * 2 * 30) < 1

# The smallest world: one rank less does not fit.
least = rows(plan("--model", "llama3-8b", "--memory", "40GB"))["full_shard"]
assert not least["fits"] and least["least_machines"] > 1, least
for machines, fits in ((least["least_machines"], True), (least["least_machines"] - 1, False)):
    there = rows(plan("--model", "llama3-8b", "--memory", "40GB", "--machines", str(machines), "--strategies",
                      "full_shard"))["full_shard"]
    assert there["fits"] == fits and (there["rank_bytes"] <= 40 * GB) == fits, there
assert rows(plan("--model", "llama3-8b", "--memory", "4GB"))["ddp"]["least_machines"] == 0

# A strategy that the rules refuse on one machine, with the reason.
alone = rows(plan("--config", str(CONFIGS / "gpt2-124m.yaml"), "--machines", "1"))
assert "nnodes" in alone["hybrid_shard"]["refused"] and alone["ddp"]["refused"] is None
assert alone["ddp"]["own"] and not alone["zero1"]["own"]
# dp is of one machine; its first rank holds what a rank of ddp holds, and the gradients of units.
assert alone["dp"]["refused"] is None and alone["dp"]["rank_bytes"] > 0, alone["dp"]
several = rows(plan("--config", str(CONFIGS / "gpt2-124m.yaml"), "--machines", "2", "--memory", "40GB"))
assert "one machine" in several["dp"]["refused"] and several["dp"]["least_machines"] == 1, several["dp"]

# The config's own strategy: fsdp alone is full_shard; a strategy without a row is named.
GPT2 = ["--config", str(CONFIGS / "gpt2-124m.yaml")]
with tempfile.TemporaryDirectory() as folder:
    own = Path(folder) / "own.yaml"
    for section, starred in (("{name: fsdp}", "full_shard"), ("{name: zero1, redundancy: shadow}", None),
                             ("{name: simple}", None)):
        text = re.sub(r"^strategy:\n(  .*\n)+", f"strategy: {section}\n", (CONFIGS / "gpt2-124m.yaml").read_text(),
                      flags=re.M)
        own.write_text(text)
        stars = [row["strategy"] for row in plan("--config", str(own))["strategies"] if row["own"]]
        assert stars == ([starred] if starred else []), (section, stars)
        assert ("strategy is none of these" in page("--config", str(own))) == (starred is None), section
    # The ranks of the command line replace those of the config, also in larger worlds.
    own.write_text((CONFIGS / "gpt2-124m.yaml").read_text().replace("cluster:\n", "cluster:\n  gpus_per_node: 64\n"))
    assert rows(plan("--config", str(own), "--machines", "64", "--ranks", "1"))["ddp"]["ranks"] == 8
    # Offload to the host has no plan.
    own.write_text((CONFIGS / "gpt2-124m.yaml").read_text().replace("  overlap:", "  offload: optimizer\n  overlap:")
                   .replace("cluster:\n", "cluster:\n  device: cuda\n"))
    done = run("--config", str(own))
    assert done.returncode == 2 and "strategy.offload=none" in done.stderr, done
    page("--config", str(own), "--set", "strategy.offload=none")
    latin = os.fsencode(folder) + b"/\xe9.yaml"
    Path(os.fsdecode(latin)).write_text((CONFIGS / "gpt2-124m.yaml").read_text())
    done = subprocess.run([PLAN, "--config", latin, "--json", "-"], capture_output=True, timeout=60)
    assert done.returncode == 2 and b"not UTF-8" in done.stderr, done
    assert subprocess.run([PLAN, "--config", latin], stdout=subprocess.DEVNULL, timeout=60).returncode == 0

# Spares do not compute: 8 slots are 8 ranks of 512. 16 lanes are 16 of 32 ranks with 32 slots.
flops = ["--flops", "100T", "--machines"]
few, many = (plan(*GPT2, *flops, machines, "--ranks", ranks)["time"] for machines, ranks in (("1", "8"), ("64", "8")))
assert few["tokens_per_s"] == many["tokens_per_s"] and abs(many["tokens_per_s"] - 398376) < 1, many
lanes = [*GPT2, "--set", "train.global_batch=128", *flops, "4", "--ranks", "8", "--strategies", "ddp,zero2"]
assert [row["waves"] for row in plan(*lanes)["strategies"]] == [2, 1] and plan(*lanes)["time"]["waves"] == 1
assert "ddp: 16 ranks train, in 2 waves a step" in page(*lanes)
assert "FLOPs a token, MFU 40 %, 1 wave a step" in page(*lanes)

# Several sums of lanes on a rank are sent; inside a machine compression saves nothing.
assert abs(rows(plan(*GPT2, "--machines", "3"))["ddp"]["sent_bytes"] / GB - 0.9955) < 1e-3
inside = plan(*GPT2, "--machines", "1", "--ranks", "4", "--set", "strategy.compression=bf16")
assert abs(rows(inside)["ddp"]["sent_bytes"] / GB - 0.7467) < 1e-3

# Adapters: 6 FLOPs for each of their parameters, 4 for each of the frozen base's, and attention.
with tempfile.TemporaryDirectory() as folder:
    base = {"model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 32, "vocab_size": 256}
    (Path(folder) / "config.json").write_text(json.dumps(base))
    adapters = Path(folder) / "adapters.yaml"
    adapters.write_text(f"model: {{name: gpt2, init_from: {folder}}}\n"
                        "train: {steps: 10, global_batch: 8, micro_batch: 1, seq_len: 32}\n"
                        "optimizer: {warmup_steps: 0}\n")
    tuned = ["--config", str(adapters), "--flops", "100T", "--strategies", "ddp", "--set"]
    whole, lora = (plan(*tuned, f"train.lora.rank={rank}") for rank in (0, 8))
    attention = 6 * 2 * 64 * 32
    assert whole["time"]["flops_per_token"] == 6 * whole["parameters"] + attention, whole
    assert lora["time"]["flops_per_token"] == 6 * lora["parameters"] + 4 * whole["parameters"] + attention, lora

# train.reduction fast has a lane a rank.
fast = rows(plan("--params", "1B", "--ranks", "8", "--set", "train.reduction=fast"))
assert fast["ddp"]["refused"] is None and fast["ddp"]["ranks"] == 8, fast["ddp"]

# A config: its batch, its steps, its world; more ranks than it has slots are spares.
config = plan("--config", str(CONFIGS / "gpt2-124m.yaml"), "--ranks", "2", "--tokens-per-s", "1000")
assert config["parameters"] == 124439808 and config["tokens_per_step"] == 32 * 1024
assert config["machines"] == 8 and config["time"]["tokens"] == 20000 * 32 * 1024
assert rows(config)["full_shard"]["ranks"] == 8
estimate = config["textbook"][1]  # 474.70 + 474.70 + 949.40 = 1,898.80 MiB
assert abs(estimate["copy_bytes"] / 2**20 - 1898.80) < 0.005
assert abs(estimate["weights_bytes"] / 2**20 - 474.70) < 0.005
assert "are spares" in page("--config", str(CONFIGS / "gpt2-124m.yaml"), "--ranks", "2")
gpu = page("--config", str(CONFIGS / "gpt2-124m.yaml"), "--set", "cluster.device=cuda", "--set", "train.precision=tf32")
assert "cluster.device is cuda" in gpu

# Failures: copies in memory beat a checkpoint, and both beat a restart; an overloaded link is marked.
failing = ["--params", "8B", "--machines", "64", "--ranks", "8", "--flops", "989T", "--link-rate", "1GB", "--tokens",
           "1T", "--mtbf-h", "500", "--checkpoint-s", "60", "--strategies", "hybrid_shard"]
failures = plan(*failing)["failures"]
assert failures["mtbf_s"] == 500 * 3600 / 64 and failures["restart_s"] == 300 and failures["recovery_s"] == 5
assert abs(failures["young_s"] - (2 * 60 * failures["mtbf_s"]) ** 0.5) < 1e-6
goodput = [failures[key]["goodput"] for key in ("restart", "dpt_checkpoint", "dpt_memory")]
assert goodput == sorted(goodput) and 0.9 < goodput[0] < goodput[2] < 1, goodput
text = page(*failing)
alone = [*failing, "--machines", "1", "--mtbf-h", "0.4", "--strategies", "full_shard"]
assert plan(*alone)["failures"]["dpt_memory"] is None and plan(*alone)["strategies"][0]["lost_state_from"] is None
assert "other machines' memory" in text and "other machines' memory" not in page(*alone)
assert "failures 0.4 hours of a machine, 0.4 hours of all" in page(*alone)
busy = plan(*failing)["strategies"][0]
assert busy["link_s"] == busy["crossing_bytes"] / GB and busy["link_limits"]
assert busy["batch_bytes"] == sum(busy["tags"][tag] for tag in ("activations", "scratch", "workspace", "data"))
assert "Young 1974" in text and "Daly 2006" in text and "! memory" in text, text

with tempfile.TemporaryDirectory() as folder:
    out = Path(folder) / "plan.json"
    assert "Textbook" in page("--params", "1B", "--json", str(out))
    assert json.loads(out.read_text())["textbook_parameters"] == 1e9
    broken = Path(folder) / "broken.yaml"
    broken.write_text("train: {micro_bach: 4}\n")
    done = run("--params", "1B", "--json", f"{folder}/none/plan.json")
    assert done.returncode == 1 and "--json" in done.stderr and done.stderr.count("\n") == 1, done
    assert run("--config", f"{folder}/none.yaml").returncode == 1

    # Wrong input: one line that names it, and exit code 2.
    ok = ["--params", "1B"]
    for flags, word in (
            ([], "no model"),
            (["--params"], "--params needs a value"),
            (["--params", "70X"], "K, M, B or T"),
            (["--params", "0"], "above 0"),
            (["--params", "1e3"], "--params"),
            (["--params", "1e16"], "--params"),
            (["--layers", "4"], "--width is missing"),
            (["--width", "64"], "--layers is missing"),
            (["--layers", "4", "--width", "100"], "multiple of 64"),
            (["--model", "gpt5"], "gpt2-124m"),
            ([*ok, "--model", "gpt3-175b"], "two models"),
            ([*ok, "--config", str(CONFIGS / "tiny.yaml")], "two models"),
            (["--config", str(broken)], "micro_batch"),
            ([*ok, "--set", "train.micro_batch=0"], "train.micro_batch"),
            ([*ok, "--machines", "0"], "--machines"),
            ([*ok, "--machines", "1000", "--ranks", "8"], "at most 1024 ranks"),
            ([*ok, "--memory", "eighty"], "KiB to TiB"),
            ([*ok, "--strategies", "ddp,zero9"], "zero9"),
            ([*ok, "--strategies", ""], "strategy"),
            ([*ok, "--mfu", "40"], "at most 1"),
            ([*ok, "--mfu", "0.4"], "--flops"),
            ([*ok, "--tokens-per-s", "1K"], "--tokens is missing"),
            ([*ok, "--price", "3"], "--price needs"),
            ([*ok, "--tokens", "1B"], "--tokens needs"),
            (["--model", "resnet18"], "give --config"),
            ([*GPT2, "--set", "cluster.nnodes=4"], "give --machines"),
            ([*GPT2, "--set", "cluster.gpus_per_node=4"], "give --ranks"),
            ([*GPT2, "--set", "strategy.name=zero2"], "give --strategies"),
            ([*GPT2, "--set", "strategy={name: zero2}"], "single keys"),
            ([*ok, "--set", "train.steps=5"], "--tokens"),
            ([*ok, "--set", "train.lanes=5"], "train.global_batch"),
            ([*ok, "--mtbf-h", "3"], "--mtbf-h needs"),
            ([*ok, "--checkpoint-s", "3"], "--mtbf-h"),
            ([*ok, "--flops", "1T", "--tokens-per-s", "1"], "got both"),
            ([*ok, "--gpus", "8"], "unknown option '--gpus'"),
            (["plan.yaml"], "expected an option"),
            (["--config", str(CONFIGS / "cifar10.yaml"), "--flops", "1T"], "--tokens-per-s")):
        done = run(*flags)
        assert done.returncode == 2 and word in done.stderr and done.stderr.count("\n") == 1, (flags, done)
        assert done.stderr.startswith("dpt-plan: "), (flags, done)

# Every command of docs/planning.md.
commands = re.findall(r"dpt-plan (--(?:\\\n|[^`#\n])*)", (CONFIGS.parent / "docs" / "planning.md").read_text())
commands = [line.replace("\\\n", " ").replace("my.yaml", str(CONFIGS / "gpt2-124m.yaml")).split() for line in commands]
assert len(commands) > 6, commands
for flags in commands:
    page(*flags)

assert run("--help").stdout.startswith("usage: dpt-plan") and run("--version").stdout.startswith("dpt-plan ")
with open("/dev/full", "w") as full:
    assert subprocess.run([PLAN, "--params", "1B"], stdout=full, stderr=subprocess.DEVNULL, timeout=60).returncode == 1
