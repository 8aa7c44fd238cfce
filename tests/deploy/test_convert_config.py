"""deploy/convert-config: configs of lab projects become ones that dpt-worker takes; what it cannot translate is named;
its table has what the error of an unknown key promises."""

import importlib.machinery
import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONVERT = ROOT / "deploy" / "convert-config"
TIMEOUT_S = 60

LAB = """\
# Lab 4: sharded training
experiment_name: "lab 4: FSDP"   # shown by the tracker
seed: 42
model:
  type: gpt2
  vocab_size: 256
  hidden_size: 32
  num_layers: 1
  num_heads: 2
  max_seq_len: 32
training:
  batch_size: 4      # per GPU
  gradient_accumulation_steps: 2
  num_epochs: 2
  learning_rate: 3e-4
  mixed_precision: bf16
  log_interval: 10
optimizer: {type: AdamW, betas: [0.9, 0.95]}
scheduler:
  type: CosineAnnealingLR
  T_max: 20
  eta_min: 3.0e-5
fsdp:
  sharding_strategy: FULL_SHARD
  backward_prefetch: BACKWARD_PRE
  cpu_offload: false
data:
  train_path: text.txt
  num_workers: 4
"""


def convert(tmp_path, text, *args, code=0):
    path = tmp_path / "lab.yaml"
    path.write_text(text)
    done = subprocess.run([CONVERT, "lab.yaml", *args], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout, done.stderr


def lines_of(out):
    """The lines without their remarks and indents."""
    return {re.sub(r"  #.*", "", line).strip() for line in out.splitlines()}


def test_a_lab_config_trains(tmp_path):
    """As the file is, dpt-worker refuses it and names the script; what the script makes of it runs."""
    out, err = convert(tmp_path, LAB, "--gpus", "2")
    assert err == ""
    assert "  global_batch: 16  # 4 per GPU x 2 GPUs x 2 of accumulation" in out.splitlines()
    assert {"run: lab-4-FSDP", "name: fsdp", "sharding: full_shard", "epochs: 2", "micro_batch: 4", "schedule: cosine",
            "schedule_steps: 20", "name: adamw", "weight_decay: 0.01", "grad_clip: 0", "precision: bf16",
            "# data.num_workers is left out: the loader reads ahead by itself"} <= lines_of(out)
    (tmp_path / "text.txt").write_text("the rank leaves and another comes in time " * 60)
    (tmp_path / "my.yaml").write_text(out)
    worker = [Path(os.environ["DPT_BIN"]) / "dpt-worker", "--nnodes", "1", "--set", "log.dir=log"]
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"}
    run = dict(cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S, env=env)
    refused = subprocess.run([*worker, "--config", "lab.yaml"], **run)
    assert refused.returncode == 2
    assert "lab.yaml:5:3: model.type is another program's word; here: model.name: gpt2" in refused.stderr
    assert "deploy/convert-config translates the file" in refused.stderr
    done = subprocess.run([*worker, "--config", "my.yaml"], **run)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^Epoch 2/2 \| Avg loss \d\.\d{4} \| \d+\.\d s \| [\d.]+ samples/s$", done.stdout, re.MULTILINE)


def test_gpus_of_the_file(tmp_path):
    out, _ = convert(tmp_path, "training: {batch_size: 8}\ndistributed: {nproc_per_node: 2, num_nodes: 3, "
                               "backend: gloo, master_port: 29500}\n")
    assert {"gpus_per_node: 2", "nnodes: 3", "backend: host", "micro_batch: 8", "global_batch: 48"} <= lines_of(out)
    assert "master_port is left out" in out
    out, _ = convert(tmp_path, "batch_size: 8\n")
    assert "  global_batch: 8  # 8 per GPU x 1 GPU x 1 of accumulation; for more GPUs: --gpus N" in out.splitlines()


@pytest.mark.parametrize("text, args, total", [
    ("batch_size: 8\nworld_size: 8\nnproc_per_node: 4\nnum_nodes: 2\n", (), 64),
    ("batch_size: 8\nnproc_per_node: 4\nnum_nodes: 2\nworld_size: 8\n", (), 64),
    ("batch_size: 8\nnum_nodes: 2\nnproc_per_node: 4\n", ("--gpus", "8"), 64),
    ("batch_size: 8\nworld_size: 4\n", ("--gpus", "2"), 16),
])
def test_gpus_all_together(tmp_path, text, args, total):
    """In whatever order; the command line goes first."""
    out, _ = convert(tmp_path, text, *args)
    assert f"global_batch: {total}" in lines_of(out)


def test_llama(tmp_path):
    out, _ = convert(tmp_path, "model: {type: llama, num_hidden_layers: 2, num_attention_heads: 4, num_kv_heads: 2, "
                               "hidden_size: 64, intermediate_size: 128}\n")
    assert {"name: llama", "n_layer: 2", "n_head: 4", "n_kv_head: 2", "n_embd: 64", "n_inner: 128"} <= lines_of(out)
    out, _ = convert(tmp_path, "model: {name: SmolLM2-135M}\n")
    assert {"name: llama", "preset: smollm2-135m"} <= lines_of(out)
    out, _ = convert(tmp_path, "model: {name: SmolLM2-1.7B}\n")
    assert "preset: smollm2-1.7b" in lines_of(out)


def test_mixed_precision(tmp_path):
    """A type that a key names goes before PyTorch's default."""
    for text, precision in (("mixed_precision: true\n", "fp16"), ("mixed_precision: true\nbf16: true\n", "bf16"),
                            ("dtype: torch.bfloat16\nmixed_precision: true\n", "bf16"), ("dtype: float32\n", "fp32")):
        out, _ = convert(tmp_path, text)
        assert f"precision: {precision}" in lines_of(out)


def test_defaults_of_pytorch(tmp_path):
    """dpt's are others: what the file leaves out is written."""
    out, _ = convert(tmp_path, "optimizer: {name: SGD, lr: 0.1}\n")
    assert {"name: sgd", "lr: 0.1", "weight_decay: 0", "momentum: 0", "grad_clip: 0",
            "schedule: constant"} <= lines_of(out)
    out, _ = convert(tmp_path, "training: {batch_size: 8, learning_rate: 1e-3}\n")
    assert {"name: adamw", "weight_decay: 0.01", "betas: [0.9, 0.999]"} <= lines_of(out)
    out, _ = convert(tmp_path, "optimizer: Adam\n")
    assert {"name: adam", "weight_decay: 0", "betas: [0.9, 0.999]"} <= lines_of(out)


def test_warmup_ratio(tmp_path):
    out, _ = convert(tmp_path, "max_steps: 200\nwarmup_ratio: 0.1\nscheduler: cosine\n")
    assert "warmup_steps: 20" in lines_of(out)
    _, err = convert(tmp_path, "num_epochs: 2\nwarmup_ratio: 0.1\n", code=1)
    assert err == ("lab.yaml: the warm-up is a part of a number of steps that the file does not have; give "
                   "optimizer.warmup_steps\n")


@pytest.mark.parametrize("text, said", [
    ("model:\n  type: resnet18\n", "lab.yaml:2: model.type: there is no 'resnet18' here; known: gpt2"),
    ("optimizer:\n\n  name: LAMB\n", "lab.yaml:3: optimizer.name: there is no 'LAMB' here; known: adam, adamw, sgd"),
    ("scheduler: {type: StepLR}\n", "lab.yaml:1: scheduler.type: there is no 'StepLR' here"),
    ("fsdp: {sharding_strategy: _HYBRID_SHARD_ZERO2}\n", "lab.yaml:1: fsdp.sharding_strategy: there is no"),
    ("training: {batch_size: many}\n", "lab.yaml:1: training.batch_size: 'many' is no number"),
    ("training: {batch_size: 1.5}\n", "lab.yaml:1: training.batch_size: '1.5' is no whole number"),
    ("training: {label_smoothing: 0.1}\n", "lab.yaml:1: training.label_smoothing is not known; see docs/config.md"),
    ("data: {path: cifar10}\n", "lab.yaml:1: data.path: 'cifar10' is no .txt file and no .bin shards"),
    ("data: {shuffle: false}\n", "lab.yaml:1: data.shuffle: samples are always taken in a permutation"),
    ("num_epochs: 2\nmax_steps: 100\n", "lab.yaml: both epochs and steps are given"),
    ("batch_size: 8\nglobal_batch_size: 12\n", "lab.yaml: train.global_batch is no multiple of the batch of a GPU"),
    ("batch_size: 8\nmicro_batch_size: 16\n", "lab.yaml:2: micro_batch_size: another key says 8, and this 16"),
    ("training: {weight_decay: 0.1}\noptimizer: {weight_decay: 0.01}\n",
     "lab.yaml:2: optimizer.weight_decay: optimizer.weight_decay is 0.1 by another key, and 0.01 by this"),
    ("dtype: float32\nfp16: true\n", "lab.yaml:2: fp16: train.precision is fp32 by another key, and fp16 by this"),
    ("world_size: 8\nnproc_per_node: 2\nnum_nodes: 2\nbatch_size: 1\n",
     "lab.yaml: there are 8 GPUs all together, and 4 on the nodes; the first is taken"),
    ("batch_size: 8\ngradient_accumulation_steps: 4\nglobal_batch_size: 256\nworld_size: 4\n",
     "lab.yaml: the global batch is 256, but 8 per GPU x 4 GPUs x 4 of accumulation are 128; the first is taken"),
    ("batch_size: 0\n", "lab.yaml:1: batch_size: '0' is less than 1"),
    ("num_epochs: 1e999\n", "lab.yaml:1: num_epochs: 'inf' is no whole number"),
    ("scheduler: {T_max: 20}\n", "lab.yaml: T_max has no cosine or linear schedule to be of"),
])
def test_what_it_cannot_translate(tmp_path, text, said):
    """A line each, exit 1, and a comment in what is written."""
    out, err = convert(tmp_path, text, code=1)
    assert err.startswith(said) and err.count("\n") == 1, err
    assert "# NOT TRANSLATED: " in out


@pytest.mark.parametrize("text, said", [
    ("a: &anchor 1\n", "lab.yaml:1: '&anchor 1': anchors, tags"),
    ("a: |\n  text\n", "lab.yaml:1: '|': anchors, tags and texts of several lines"),
    ("a:\n\tb: 1\n", "lab.yaml:2: a tab indents"),
    ("a: [1, 2\n", "lab.yaml:1: brackets"),
    ("a: 'x\n", "lab.yaml:1: the quotes of 'x do not end on the line"),
    ("just text\n", "lab.yaml:1: 'just text' is no key: value"),
    ("- a\n- b\n", "lab.yaml:1: a list that is no key's value"),
    ("a: {b: {c: {d: {e: 1}}}}\n", "lab.yaml:1: a.b.c.d.e lies deeper than 4 sections"),
    ("callbacks:\n  - type: checkpoint\n    max_steps: 7\n", "lab.yaml:2: a list of mappings or of lists"),
    ("callbacks:\n- max_steps: 7\n", "lab.yaml:2: a list of mappings or of lists"),
    ("callbacks:\n  -\n    max_steps: 7\n", "lab.yaml:2: a list of mappings or of lists"),
    ("callbacks:\n  - {max_steps: 7}\n", "lab.yaml:2: a list of mappings or of lists"),
    ("callbacks:\n  - - 7\n", "lab.yaml:2: a list of mappings or of lists"),
    ("callbacks: [{max_steps: 7}]\n", "lab.yaml:1: a list of mappings or of lists"),
    ("callbacks: [[1, 2]]\n", "lab.yaml:1: a list of mappings or of lists"),
    ("callbacks:\n  - checkpoint\n    max_steps: 7\n", "lab.yaml:3: the line is inside a key that has a value"),
    ("a: 1\n  max_steps: 7\n", "lab.yaml:2: the line is inside a key that has a value already"),
])
def test_what_it_cannot_read(tmp_path, text, said):
    out, err = convert(tmp_path, text, code=2)
    assert out == "" and err.startswith(said), err


def test_no_file(tmp_path):
    done = subprocess.run([CONVERT, tmp_path / "none.yaml"], capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 2 and done.stderr.startswith("convert-config: ") and "none.yaml" in done.stderr


def load_script(monkeypatch):
    monkeypatch.syspath_prepend(str(CONVERT.parent))
    loader = importlib.machinery.SourceFileLoader("convert_config", str(CONVERT))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("convert_config", loader))
    loader.exec_module(module)
    return module


def test_reads_yaml(monkeypatch):
    read = load_script(monkeypatch).read_yaml
    text = "a:\n  b: 1e-4 # no text\n  c:\n    - x\n    - 'y # z'\n    - -1\nd: {e: [1, 2.5], f: \"g: h\"}\ni:\nj: No\n"
    assert read(text) == [
        (2, ["a", "b"], 1e-4), (3, ["a", "c"], ["x", "y # z", -1]), (7, ["d", "e"], [1, 2.5]),
        (7, ["d", "f"], "g: h"), (8, ["i"], None), (9, ["j"], False)]


def test_knows_what_is_promised(monkeypatch):
    """Each name of the table of unknown keys has a rule: the error says that the script translates the file."""
    table = (ROOT / "base" / "config_foreign.c").read_text()
    names = re.findall(r'^    \{"([\w.]+)",', table, re.MULTILINE)
    assert len(names) > 50
    script = load_script(monkeypatch)
    assert [name for name in names if script.rule_of(name.split(".")) is None] == []
