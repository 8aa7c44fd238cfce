"""deploy/convert-config: configs of lab projects become configs that dpt-worker accepts; keys that it cannot translate
are named; it has a rule for each key for which dpt-worker's error names the script."""

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
    """The lines without comments and indents."""
    return {re.sub(r"  #.*", "", line).strip() for line in out.splitlines()}


def worker(tmp_path, config, *args):
    env = {k: v for k, v in os.environ.items() if k != "DPT_RDZV_ENDPOINT"}
    return subprocess.run([Path(os.environ["DPT_BIN"]) / "dpt-worker", "--nnodes", "1", "--config", config, "--set",
                           "log.dir=log", *args], cwd=tmp_path, capture_output=True, text=True, timeout=TIMEOUT_S,
                          env=env)


def test_a_lab_config_trains(tmp_path):
    """dpt-worker refuses the lab's file and names the script; the translated file trains."""
    out, err = convert(tmp_path, LAB, "--gpus", "2")
    assert err == ""
    assert "  global_batch: 16  # 4 per GPU x 2 GPUs x 2 of accumulation" in out.splitlines()
    assert {"run: lab-4-FSDP", "name: fsdp", "sharding: full_shard", "epochs: 2", "micro_batch: 4", "schedule: cosine",
            "schedule_steps: 20", "name: adamw", "weight_decay: 0.01", "grad_clip: 0", "precision: bf16",
            "# data.num_workers is left out: the loader reads ahead by itself"} <= lines_of(out)
    (tmp_path / "text.txt").write_text("the rank leaves and another comes in time " * 60)
    (tmp_path / "my.yaml").write_text(out)
    refused = worker(tmp_path, "lab.yaml")
    assert refused.returncode == 2
    assert "lab.yaml:5:3: model.type is another program's word; here: model.name: gpt2" in refused.stderr
    assert "deploy/convert-config translates the file" in refused.stderr
    done = worker(tmp_path, "my.yaml")
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
    """The number of GPUs is found in any order of keys; the command line has priority."""
    out, _ = convert(tmp_path, text, *args)
    assert f"global_batch: {total}" in lines_of(out)


TINY = "model: {type: gpt2, hidden_size: 32, num_layers: 1, num_heads: 2, seq_len: 32}\ndata: {train_path: text.txt}\n"


@pytest.mark.parametrize("text, lines", [
    (TINY + "fsdp: {enabled: false, sharding_strategy: FULL_SHARD}\n", {"# fsdp is left out: fsdp.enabled is false"}),
    (TINY + "fsdp: {enabled: true, sharding_strategy: SHARD_GRAD_OP}\n", {"name: fsdp", "sharding: shard_grad_op"}),
    (TINY + "use_fsdp: false\nsharding_strategy: FULL_SHARD\n", {"# sharding_strategy is left out: use_fsdp is false"}),
    (TINY + "profiler: {enabled: false, steps: 3}\n", {"# profiler is left out: profiler.enabled is false"}),
    (TINY + "distributed: {fsdp: {sharding_strategy: NO_SHARD}}\n", {"sharding: no_shard"}),
    (TINY + "optimizer: {type: AdamW, betas: [0.8, 0.99]}\n", {"lr: 0.001", "betas: [0.8, 0.99]"}),
    (TINY + "training: {optimizer: {lr: 0.5}}\n", {"lr: 0.5"}),
    (TINY + "num_epochs: 3\nscheduler: {type: cosine, T_max: 3, interval: step}\n", {"schedule_steps: 3"}),
    (TINY + "max_steps: 2\nsave_every: 1\n", {"every_steps: 1", "dir: checkpoints"}),
    (TINY + "log_dir: \"it's: 7\"\noutput_dir: \"7\"\n", {"dir: 'it''s: 7'", "dir: '7'"}),
])
def test_the_program_takes_it(tmp_path, text, lines):
    out, err = convert(tmp_path, text + "wandb: {project: x}\n")
    assert err == "" and lines <= lines_of(out)
    assert ("name: fsdp" in lines_of(out)) == ("sharding" in "".join(lines_of(out) - {
        line for line in lines_of(out) if line.startswith("#")}))
    (tmp_path / "text.txt").write_text("the rank leaves and another comes in time " * 60)
    (tmp_path / "my.yaml").write_text(out)
    limit = [] if "epochs" in out else ["--set", "train.steps=1"]
    done = worker(tmp_path, "my.yaml", *limit)
    assert done.returncode == 0, done.stderr


def test_resnet(tmp_path):
    """The translated file of a lab on CIFAR-10 is refused only because its data are missing."""
    out, err = convert(tmp_path, "model: {name: small_resnet, num_layers: 18, num_classes: 10}\ndataset: CIFAR10\n"
                                 "training: {batch_size: 32, num_epochs: 2}\n")
    assert err == ""
    assert {"name: resnet", "preset: small_resnet", "n_layer: 18", "labels: 10", "kind: cifar10"} <= lines_of(out)
    (tmp_path / "my.yaml").write_text(out)
    done = worker(tmp_path, "my.yaml")
    assert done.returncode == 2 and "data/cifar10/data_batch_*.bin" in done.stderr, done.stderr


def test_lora(tmp_path):
    """A LoRA config trains on a folder that dpt wrote."""
    (tmp_path / "text.txt").write_text("the rank leaves and another comes in time " * 60)
    out, _ = convert(tmp_path, TINY + "output_dir: checkpoints\n")
    (tmp_path / "my.yaml").write_text(out)
    assert worker(tmp_path, "my.yaml", "--set", "train.steps=1").returncode == 0
    subprocess.run([Path(os.environ["DPT_BIN"]) / "dpt-ckpt", "export", "checkpoints", "weights"], cwd=tmp_path,
                   check=True, capture_output=True, timeout=TIMEOUT_S)
    out, err = convert(tmp_path, "model: {name_or_path: ./weights, type: gpt2}\ntraining: {seq_len: 32}\n"
                                 "data: {train: text.txt}\nlora: {r: 4, lora_dropout: 0.0, bias: none}\n")
    assert err == ""
    assert ["  lora:", "    rank: 4", "    alpha: 8  # PEFT's default", "    targets: [c_attn]  # PEFT's default"] == [
        line for line in out.splitlines() if "lora" in line or line.startswith("    ")][:4]
    (tmp_path / "my.yaml").write_text(out)
    done = worker(tmp_path, "my.yaml", "--set", "train.steps=1")
    assert done.returncode == 0, done.stderr


def test_llama(tmp_path):
    out, _ = convert(tmp_path, "model: {type: llama, num_hidden_layers: 2, num_attention_heads: 4, num_kv_heads: 2, "
                               "hidden_size: 64, intermediate_size: 128}\n")
    assert {"name: llama", "n_layer: 2", "n_head: 4", "n_kv_head: 2", "n_embd: 64", "n_inner: 128"} <= lines_of(out)
    out, _ = convert(tmp_path, "model: {name: SmolLM2-135M}\n")
    assert {"name: llama", "preset: smollm2-135m"} <= lines_of(out)
    out, _ = convert(tmp_path, "model: {name: SmolLM2-1.7B}\n")
    assert "preset: smollm2-1.7b" in lines_of(out)


def test_mixed_precision(tmp_path):
    """A precision that a key names has priority over PyTorch's default."""
    for text, precision in (("mixed_precision: true\n", "fp16"), ("mixed_precision: true\nbf16: true\n", "bf16"),
                            ("dtype: torch.bfloat16\nmixed_precision: true\n", "bf16"), ("dtype: float32\n", "fp32")):
        out, _ = convert(tmp_path, text)
        assert f"precision: {precision}" in lines_of(out)


def test_defaults_of_pytorch(tmp_path):
    """Keys that the file leaves to PyTorch's defaults are written out, because dpt's defaults differ."""
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
    assert err == ("lab.yaml: warmup_ratio needs the number of steps, which the file lacks; give "
                   "optimizer.warmup_steps\n")


def test_warmup_in_steps_and_as_a_ratio(tmp_path):
    """If warm-up is given in steps and as a ratio, the steps count; a line reports it unless both are equal."""
    text = "max_steps: 50\nscheduler: {type: linear, warmup_ratio: 0.1, warmup_steps: 3}\n"
    out, err = convert(tmp_path, text, code=1)
    assert "warmup_steps: 3" in lines_of(out)
    assert err == "lab.yaml: warmup_ratio is 0.1, 5 of the steps, and another key says 3; the 3 steps are taken\n"
    out, err = convert(tmp_path, "num_epochs: 2\nwarmup_steps: 3\nwarmup_ratio: 0.1\n", code=1)
    assert "warmup_steps: 3" in lines_of(out)
    assert err == "lab.yaml: warmup_ratio is 0.1, and another key says 3; the 3 steps are taken\n"
    out, err = convert(tmp_path, "max_steps: 50\nwarmup_ratio: 0.1\nwarmup_steps: 5\n")
    assert err == "" and "warmup_steps: 5" in lines_of(out)


def test_intervals(tmp_path):
    """In a file that counts epochs, intervals may count epochs and are reported, unless their name says steps."""
    steps = "the steps of an epoch (data.train's samples / train.global_batch)"
    for key, path in (("save_every", "checkpoint.every_steps"), ("save_interval", "checkpoint.every_steps"),
                      ("eval_interval", "train.eval_every")):
        epochs = "data: {train: a.txt, val: b.txt}\ntraining: {num_epochs: 10, save_dir: ck, "
        out, err = convert(tmp_path, f"{epochs}{key}: 2}}\n", code=1)
        assert err == (f"lab.yaml: {key} (2) counts epochs, and the file lacks the steps of an epoch; give {path}: 2 x "
                       f"{steps}\n")
        assert not any(line.startswith(path.split(".")[1]) for line in lines_of(out))
        out, err = convert(tmp_path, f"{epochs}{key}: 20}}\n")
        assert err == "" and f"  {path.split('.')[1]}: 20  # {key} in steps: it is more than the 10 epochs" in out
        for text in f"{epochs}{key}: 0}}\n", epochs.replace("num_epochs", "max_steps") + f"{key}: 2}}\n":
            out, err = convert(tmp_path, text)
            assert err == "" and f"{path.split('.')[1]}: {0 if ': 0}' in text else 2}" in lines_of(out)
    out, err = convert(tmp_path, epochs + "save_steps: 2, eval_steps: 3}\n")
    assert err == "" and {"every_steps: 2", "eval_every: 3"} <= lines_of(out)


def test_numbers_in_quotes(tmp_path):
    out, err = convert(tmp_path, "lr: \"3e-4\"\nbatch_size: '8'\nwarmup_steps: '10'\nbetas: ['0.8', \"0.99\"]\n")
    assert err == ""
    assert {"lr: 0.0003", "micro_batch: 8", "warmup_steps: 10", "betas: [0.8, 0.99]"} <= lines_of(out)


def test_the_optimizers_other_keys(tmp_path):
    out, err = convert(tmp_path, "optimizer: {name: AdamW, fused: true, amsgrad: false}\n")
    assert err == ""
    assert {"# optimizer.fused is left out: the optimizer's kernels are chosen by the device",
            "# optimizer.amsgrad is left out: adamw and adam are without it here"} <= lines_of(out)


@pytest.mark.parametrize("key", ["gradient_accumulation_steps", "grad_accum_steps", "accumulate_grad_batches"])
def test_accumulation(tmp_path, key):
    out, err = convert(tmp_path, f"batch_size: 4\n{key}: 2\n", "--gpus", "2")
    assert err == "" and "  global_batch: 16  # 4 per GPU x 2 GPUs x 2 of accumulation" in out.splitlines()


@pytest.mark.parametrize("text, said", [
    ("model:\n  type: resnet101\n", "lab.yaml:2: model.type: there is no 'resnet101' here; known: gpt2"),
    ("model: {type: gpt2, name: org/weights}\n", "lab.yaml:1: model.name: 'org/weights' names published weights"),
    ("logging: {steps: 10}\n", "lab.yaml:1: logging.steps is not known; see docs/config.md"),
    ("scheduler: {warmup: {steps: 500}}\n", "lab.yaml:1: scheduler.warmup.steps is not known"),
    ("tokenizer: {dropout: 0.05}\n", "lab.yaml:1: tokenizer.dropout is not known"),
    ("evaluation: {batch_size: 8}\n", "lab.yaml:1: evaluation.batch_size is not known"),
    ("early_stopping: {min_lr: 1e-6}\n", "lab.yaml:1: early_stopping.min_lr is not known"),
    ("model: {optimizer: {lr: 1e-6}}\n", "lab.yaml:1: model.optimizer.lr is not known"),
    ("optimizer:\n  betas: (0.9, 0.999)\n",
     "lab.yaml:2: optimizer.betas: '(0.9, 0.999)' is no list of two numbers; write them as [0.9, 0.999]"),
    ("optimizer: {amsgrad: true}\n", "lab.yaml:1: optimizer.amsgrad: adamw and adam are without it here"),
    ("lr: '3e-4x'\n", "lab.yaml:1: lr: '3e-4x' is no number"),
    ("betas: [0.9, 1]\n", "lab.yaml:1: betas: '1' is not from 0 to below 1"),
    ("data: {val_path: [a.txt, b.txt]}\n", "lab.yaml:1: data.val_path: '[a.txt, b.txt]' is a list; name one file"),
    ("data: {val_path: x.parquet}\n", "lab.yaml:1: data.val_path: 'x.parquet' is no .txt file and no .bin shards"),
    ("data: {train: a.txt, val: b.bin}\n", "lab.yaml:1: data.val: data.kind is text by another key, and tokens"),
    ("data: {train: 7}\n", "lab.yaml:1: data.train: '7' is no text"),
    ("dataset: imagenet\n", "lab.yaml:1: dataset: 'imagenet' is no data set that is known"),
    ("dataset: cifar10\n", "lab.yaml: data.kind: cifar10 needs a model of images"),
    ("learning_rate: -1\n", "lab.yaml:1: learning_rate: '-1' is not from 0 to 1000"),
    ("eps: 0\n", "lab.yaml:1: eps: '0' is not from above 0 to 1"),
    ("bf16: auto\n", "lab.yaml:1: bf16: 'auto' is neither true nor false"),
    ("eta_min: 0.01\n", "lab.yaml: optimizer.min_lr (0.01) is above optimizer.lr (0.001)"),
    ("optimizer: {name: sgd, nesterov: true}\n", "lab.yaml: nesterov needs a momentum"),
    ("num_epochs: 20\nscheduler: {type: cosine, T_max: 20}\n", "lab.yaml: T_max (20) counts epochs"),
    ("num_epochs: 2\nscheduler: {type: cosine, T_max: 20, interval: epoch}\n", "lab.yaml: T_max (20) counts epochs"),
    ("max_steps: 20\nwarmup_steps: 30\n", "lab.yaml: the warm-up has 30 steps, and the run has 20"),
    ("eval_interval: 20\n", "lab.yaml: an evaluation needs data.val"),
    ("strategy: fsdp\nfsdp: {enabled: false}\n", "lab.yaml:1: strategy: fsdp.enabled is false; ddp is taken"),
    ("use_fsdp: true\nfsdp: {enabled: false}\n", "lab.yaml:1: use_fsdp: fsdp.enabled is false; ddp is taken"),
    ("sharding_strategy: HYBRID_SHARD\n", "lab.yaml: hybrid_shard replicates across nodes"),
    ("precision: tf32\ndevice: cpu\n", "lab.yaml: tf32 needs a GPU, and the file's device is cpu"),
    ("model: {name: resnet18, num_classes: 10}\n", "lab.yaml: a ResNet reads images"),
    ("model: {name: resnet18}\ndataset: cifar10\n", "lab.yaml: a ResNet needs model.labels"),
    ("model: {name: resnet18, num_classes: 9, num_layers: 18}\ndataset: cifar10\n",
     "lab.yaml: model.n_layer belongs to small_resnet"),
    ("model: {name: resnet18, num_classes: 9, d_model: 18}\ndataset: cifar10\n",
     "lab.yaml: model.n_embd belongs to models of texts"),
    ("gradient_checkpointing: true\nmodel: {name: resnet18, num_classes: 9}\ndataset: cifar10\n",
     "lab.yaml: train.activation_checkpointing belongs to models of texts"),
    ("model: {name: gpt2, num_labels: 5}\n", "lab.yaml: model.labels needs texts with labels"),
    ("model: {name: gpt2, intermediate_size: 512}\n", "lab.yaml: model.n_inner belongs to model.name: llama"),
    ("model: {n_head: 3}\n", "lab.yaml: model.n_head (3) does not divide model.n_embd (128)"),
    ("vocab_size: 100\n", "lab.yaml: model.vocab is below 256, the number of byte tokens"),
    ("model: {name_or_path: ./weights, name: gpt2_small}\n", "lab.yaml: the folder of model.init_from sets the sizes"),
    ("lora: {r: 8}\n", "lab.yaml: adapters need published weights: give model.init_from"),
    ("model: {name_or_path: ./weights}\nlora: {r: 8}\n", "lab.yaml: the file names no target_modules"),
    ("lora: {dropout: 0.05}\n", "lab.yaml:1: lora.dropout: adapters have no dropout here"),
    ("lora: {bias: all}\n", "lab.yaml:1: lora.bias: biases are not trained beside adapters here"),
    ("model: {name_or_path: ./w}\nlora: {target_modules: [c_attn, wte]}\n",
     "lab.yaml:2: lora.target_modules: there are"),
    ("model: {name_or_path: ./w, type: gpt2}\nlora: {target_modules: q_proj}\n",
     "lab.yaml: train.lora.targets: a gpt2"),
    ("model: resnet\nnum_classes: 9\ndataset: cifar10\nlora: {r: 8}\n", "lab.yaml: a ResNet has no adapters"),
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
    ("scheduler: {T_max: 20}\n", "lab.yaml: T_max needs a cosine or linear schedule"),
])
def test_what_it_cannot_translate(tmp_path, text, said):
    """Each key that cannot be translated is a line on standard error and a comment in the result; exit 1."""
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
    """Each name in dpt-worker's table of foreign keys has a rule, because the error says that the script translates the
    file."""
    table = (ROOT / "base" / "config_foreign.c").read_text()
    rows = re.findall(r'^    \{"([\w. ]+)",', table, re.MULTILINE)
    names = [name for row in rows for name in row.split()]
    assert len(names) > 50
    script = load_script(monkeypatch)
    assert [name for name in names if script.rule_of(name.split(".")) is None] == []
