"""The translation of each key of other training programs' configs, by its section and its name."""

import math
import re

from foreign_yaml import as_number, as_yaml

RUN_BYTES = 63  # of a run's name


class Untranslatable(Exception):
    """A value that dpt does not have; the text says what to do."""


def number(value):
    """A number, also one in quotes, which other programs read with float()."""
    value = as_number(value) if isinstance(value, str) and as_number(value) is not None else value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise Untranslatable(f"'{value}' is no number")
    return value


def real(most, below=False, above=False):
    """A translation of numbers from 0 to `most`; below: not `most` itself; above: not 0."""
    def translate(value):
        value = number(value)
        if not 0 <= value <= most or (below and value == most) or (above and value == 0):
            raise Untranslatable(f"'{value}' is not from {'above ' * above}0 to {'below ' * below}{most}")
        return value
    return translate


def count(value):
    value = number(value)
    if not math.isfinite(value) or value != int(value) or value < 0:
        raise Untranslatable(f"'{value}' is no whole number")
    return int(value)


def some(value):
    if count(value) < 1:
        raise Untranslatable(f"'{value}' is less than 1")
    return count(value)


def truth(value):
    if not isinstance(value, bool):
        raise Untranslatable(f"'{value}' is neither true nor false")
    return value


def text(value):
    if not isinstance(value, str):
        raise Untranslatable(f"'{as_yaml(value)}' is no text")
    return value


def pair_of_betas(value):
    if not isinstance(value, list) or len(value) != 2:
        raise Untranslatable(f"'{value}' is no list of two numbers; write them as [0.9, 0.999]")
    return [real(1, below=True)(beta) for beta in value]


def choose(words):
    """A translation of words in any case and with any prefix (torch.bfloat16)."""
    def translate(value):
        name = str(value).lower().replace("-", "_")
        name = name if name in words else name.split(".")[-1]
        if name not in words:
            raise Untranslatable(f"there is no '{value}' here; known: {', '.join(sorted(set(words.values())))}")
        return words[name]
    return translate


OPTIMIZER_NAME = choose({"adamw": "adamw", "adam": "adam", "sgd": "sgd"})
SCHEDULE_NAME = choose({"cosine": "cosine", "cosineannealinglr": "cosine", "cosine_annealing": "cosine",
                        "cosine_with_warmup": "cosine", "linear": "linear", "linearlr": "linear",
                        "linear_with_warmup": "linear", "constant": "constant", "constantlr": "constant",
                        "constant_with_warmup": "constant", "none": "constant"})
PRECISION = choose({"fp32": "fp32", "float32": "fp32", "no": "fp32", "none": "fp32", "false": "fp32", "32": "fp32",
                    "bf16": "bf16", "bfloat16": "bf16", "bf16_mixed": "bf16", "fp16": "fp16", "float16": "fp16",
                    "half": "fp16", "16_mixed": "fp16", "true": "fp16", "tf32": "tf32"})
SHARDING = choose({"full_shard": "full_shard", "shard_grad_op": "shard_grad_op", "hybrid_shard": "hybrid_shard",
                   "no_shard": "no_shard"})
STRATEGY = choose({"ddp": "ddp", "fsdp": "fsdp", "fsdp2": "fsdp", "zero1": "zero1", "zero2": "zero2",
                   "zero3": "zero3"})
MODEL_NAME = choose({"gpt": "gpt2", "gpt2": "gpt2", "gpt2_small": "gpt2-124m", "gpt2_124m": "gpt2-124m",
                     "gpt2_medium": "gpt2-350m", "gpt2_large": "gpt2-774m", "gpt2_xl": "gpt2-1558m", "llama": "llama",
                     "smollm2_135m": "smollm2-135m", "smollm2_360m": "smollm2-360m", "smollm2_1.7b": "smollm2-1.7b",
                     "llama_3.2_1b": "llama-3.2-1b", "resnet": "resnet", "small_resnet": "small_resnet",
                     "resnet18": "resnet18", "resnet34": "resnet34", "resnet50": "resnet50"})
BACKEND = choose({"nccl": "nccl", "gloo": "host", "mpi": "host"})
DEVICE = choose({"cpu": "cpu", "cuda": "cuda", "gpu": "cuda", "auto": "auto"})


class Config:
    """What becomes of a file."""

    def __init__(self, gpus):
        self.keys, self.notes = {}, []  # {our path: (value, remark)}; comments at the end
        self.gpus = gpus  # all together, as the command line says
        self.facts = {}  # what several of our keys follow from

    def set(self, path, value, remark=""):
        if path in self.keys and self.keys[path][0] != value:
            before = as_yaml(self.keys[path][0])
            raise Untranslatable(f"{path} is {before} by another key, and {as_yaml(value)} by this one")
        self.keys[path] = (value, remark)

    def replace(self, path, value, remark=""):
        self.keys[path] = (value, remark)

    def note_fact(self, name, value):
        if self.facts.setdefault(name, value) != value:
            raise Untranslatable(f"another key says {self.facts[name]}, and this {value}")

    def fact(self, name, otherwise=None):
        return self.facts.get(name, otherwise)

    def drop(self, path):
        self.keys.pop(path, None)

    def get(self, path):
        return self.keys[path][0] if path in self.keys else None

    def set_default(self, path, value, remark):
        if path not in self.keys:
            self.set(path, value, remark)


# Each rule takes the config and the value.

def to(path, translate=lambda value: value):
    return lambda config, value: config.set(path, translate(value))


def without(why):
    return lambda config, value: why


def fact(name, translate=some):
    return lambda config, value: config.note_fact(name, translate(value))


def interval(path, name):
    """An interval of steps or of epochs; its name does not say which."""
    def set_interval(config, value):
        config.set(path, count(value))
        config.facts.setdefault(f"name of {path}", name)
    return set_interval


def set_gpus_per_node(config, value):
    config.set("cluster.gpus_per_node", some(value))


def set_nodes(config, value):
    config.set("cluster.nnodes", some(value))


def set_mixed_precision(config, value):
    """true means the type of PyTorch's autocast on a GPU, unless another key names a type."""
    if value is True:
        config.note_fact("mixed", True)
    else:
        config.set("train.precision", PRECISION(value))


def set_length(config, value):
    config.set("model.context", count(value))
    config.set("train.seq_len", count(value))


def set_strategy(config, value):
    name = STRATEGY(value)
    if name == "fsdp" and config.fact("without_fsdp"):
        raise Untranslatable(f"{config.fact('without_fsdp')} is false; ddp is taken")
    config.set("strategy.name", name)


def set_sharding(config, value):
    sharding = SHARDING(value)
    set_strategy(config, "fsdp")
    config.set("strategy.sharding", sharding)


def set_fsdp(config, value):
    if truth(value):
        set_strategy(config, "fsdp")


def set_offload(config, value):
    if truth(value):
        config.set("strategy.offload", "optimizer")
        config.set("cluster.device", "cuda", "of which the optimizer's state is kept on the host")


def set_recompute(config, value):
    if truth(value):
        config.set("train.activation_checkpointing", "full")


def set_model(config, value):
    if "/" in text(value):
        set_weights(config, value)
        return
    name = MODEL_NAME(value)
    family = "gpt2" if name.startswith("gpt2") else "resnet" if "resnet" in name else "llama"
    config.set("model.name", family)
    if name != family:
        config.set("model.preset", name)


def set_weights(config, value):
    """A folder; a name on a hub is not a folder."""
    if not re.match(r"\.{0,2}/", text(value)):
        raise Untranslatable(f"'{value}' names published weights; download their folder and give it as model.init_from")
    config.set("model.init_from", value)


def data_kind(value):
    """The data.kind of a file's name or of a glob."""
    if re.search(r"\.(txt|text)$", text(value)) and "*" not in value:
        return "text"
    if not re.search(r"\.bin$|\*", value):
        raise Untranslatable(f"'{value}' is no .txt file and no .bin shards; dpt-data makes shards of text")
    return "tokens"


def data_file(path):
    def set_data(config, value):
        if isinstance(value, list):
            raise Untranslatable(f"'{as_yaml(value)}' is a list; name one file, or .bin shards by a glob")
        config.set("data.kind", data_kind(value))
        config.set(path, value)
    return set_data


def set_dataset(config, value):
    if str(value).lower().replace("-", "") != "cifar10":
        raise Untranslatable(f"'{value}' is no data set that is known; see docs/your-own-data.md")
    config.set("data.kind", "cifar10", "images are cropped and mirrored; augment: none if the file's program does not")
    config.set("data.train", "data/cifar10/data_batch_*.bin", "deploy/fetch cifar10 brings them")


def set_tokenizer(config, value):
    name = choose({"gpt2": "gpt2", "byte": "bytes", "bytes": "bytes", "char": "bytes"})(value)
    config.set("data.tokenizer", name)
    if name == "gpt2":
        config.set("data.vocab_bpe", "data/gpt2-vocab/vocab.bpe", "deploy/fetch gpt2-vocab brings both")
        config.set("data.encoder_json", "data/gpt2-vocab/encoder.json")


def set_shuffle(config, value):
    if not truth(value):
        raise Untranslatable("samples are always taken in a permutation of each epoch here")
    return "samples are always taken in a permutation of each epoch here"


def set_run(config, value):
    config.set("run", re.sub(r"[^A-Za-z0-9._-]+", "-", str(value)).strip("-.")[:RUN_BYTES] or "run")


def flag(precision):
    def set_flag(config, value):
        if truth(value):
            config.set("train.precision", precision)
    return set_flag


def set_amsgrad(config, value):
    why = "adamw and adam are without it here"
    if truth(value):
        raise Untranslatable(why)
    return why


def set_lora_targets(config, value):
    names = value if isinstance(value, list) else [value]
    if names in (["all-linear"], ["all"]):
        config.set("train.lora.targets", "all")
        return
    known = LORA_TARGETS["gpt2"] + LORA_TARGETS["llama"]
    for name in names:
        if name not in known:
            raise Untranslatable(f"there are no adapters of '{name}' here; known: all, {', '.join(known)}")
    config.set("train.lora.targets", names)


def set_lora_dropout(config, value):
    if number(value) != 0:
        raise Untranslatable("adapters have no dropout here")
    return "adapters have no dropout here"


def set_lora_bias(config, value):
    if value not in ("none", None, False):
        raise Untranslatable("biases are not trained beside adapters here; write none")
    return "biases are not trained beside adapters"


LOADER = without("the loader reads ahead by itself")
FSDP_DETAIL = without("a block is a unit, and the details of FSDP need no key")
RENDEZVOUS = without("workers meet at dpt-rdzv: --rdzv-endpoint HOST:PORT")
TRACKER = without("log.dir has metrics.jsonl, events.jsonl and summary.json")
FUSED = without("the optimizer's kernels are chosen by the device")
TAKEN_ON = without("the section's other keys are translated")
LORA_TARGETS = {"gpt2": ["c_attn", "c_proj", "c_fc"],
                "llama": ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]}

# Names of sections; "": outside of all.
TOP = ("",)
TRAIN = ("", "training", "train", "trainer", "training_args", "hyperparameters")
CLUSTER = ("distributed", "cluster", "hardware", "ddp")
MODEL, DATA = ("model",), ("data", "dataset", "dataloader")
OPTIMIZER, SCHEDULE = ("optimizer", "optim"), ("scheduler", "lr_scheduler")
FSDP, LORA = ("fsdp", "fsdp_config"), ("lora", "lora_config", "peft")
CHECKPOINT, LOG, EVALUATION = ("checkpoint", "checkpointing"), ("log", "logging"), ("eval", "evaluation")
AROUND = TRAIN + CLUSTER  # sections that may contain other sections
RULES = {}  # {(section, key): rule}


def rules(sections, **said):
    RULES.update({(section, key): rule for section in sections for key, rule in said.items()})


rules(TRAIN + DATA, batch_size=fact("batch"), per_device_train_batch_size=fact("batch"),
      micro_batch_size=fact("batch"), global_batch_size=to("train.global_batch", some),
      num_workers=LOADER, pin_memory=LOADER, prefetch_factor=LOADER, persistent_workers=LOADER,
      drop_last=without("an epoch always has whole batches"), shuffle=set_shuffle,
      train_path=data_file("data.train"), data_path=data_file("data.train"), val_path=data_file("data.val"))
rules(TRAIN, gradient_accumulation_steps=fact("accumulation"), grad_accum_steps=fact("accumulation"),
      accumulate_grad_batches=fact("accumulation"),
      num_epochs=to("train.epochs", some), num_train_epochs=to("train.epochs", some),
      max_epochs=to("train.epochs", some), epochs=to("train.epochs", some), max_steps=to("train.steps", some),
      num_steps=to("train.steps", some), max_iters=to("train.steps", some), steps=to("train.steps", some),
      optimizer=to("optimizer.name", OPTIMIZER_NAME), seed=to("seed", count))
rules(TRAIN + FSDP, mixed_precision=set_mixed_precision, dtype=to("train.precision", PRECISION),
      precision=to("train.precision", PRECISION), bf16=flag("bf16"), fp16=flag("fp16"))
rules(TRAIN + OPTIMIZER, learning_rate=to("optimizer.lr", real(1000)), lr=to("optimizer.lr", real(1000)),
      weight_decay=to("optimizer.weight_decay", real(1000)), betas=to("optimizer.betas", pair_of_betas),
      eps=to("optimizer.eps", real(1, above=True)), momentum=to("optimizer.momentum", real(1, below=True)),
      nesterov=to("optimizer.nesterov", truth), max_grad_norm=to("train.grad_clip", real(1e30)),
      gradient_clip=to("train.grad_clip", real(1e30)), gradient_clipping=to("train.grad_clip", real(1e30)),
      clip_grad_norm=to("train.grad_clip", real(1e30)), grad_clip=to("train.grad_clip", real(1e30)),
      scheduler=to("optimizer.schedule", SCHEDULE_NAME), lr_scheduler=to("optimizer.schedule", SCHEDULE_NAME),
      lr_scheduler_type=to("optimizer.schedule", SCHEDULE_NAME))
rules(OPTIMIZER, type=to("optimizer.name", OPTIMIZER_NAME), name=to("optimizer.name", OPTIMIZER_NAME),
      amsgrad=set_amsgrad, fused=FUSED)
rules(SCHEDULE, type=to("optimizer.schedule", SCHEDULE_NAME), name=to("optimizer.schedule", SCHEDULE_NAME),
      interval=fact("interval", choose({"step": "step", "epoch": "epoch"})), enabled=TAKEN_ON)
rules(TRAIN + OPTIMIZER + SCHEDULE, T_max=to("optimizer.schedule_steps", some),
      eta_min=to("optimizer.min_lr", real(1000)), min_lr=to("optimizer.min_lr", real(1000)),
      warmup_steps=to("optimizer.warmup_steps", count), warmup_ratio=fact("warmup_ratio", real(1)))
rules(TRAIN + CLUSTER + FSDP, sharding_strategy=set_sharding, fsdp_sharding_strategy=set_sharding, use_fsdp=set_fsdp,
      cpu_offload=set_offload, auto_wrap_policy=FSDP_DETAIL, backward_prefetch=FSDP_DETAIL,
      forward_prefetch=FSDP_DETAIL, limit_all_gathers=FSDP_DETAIL, use_orig_params=FSDP_DETAIL,
      sync_module_states=FSDP_DETAIL, state_dict_type=FSDP_DETAIL, min_num_params=FSDP_DETAIL)
rules(FSDP, enabled=set_fsdp)
rules(TRAIN + CLUSTER, strategy=set_strategy, bucket_cap_mb=to("strategy.bucket_mib", real(16384, above=True)))
rules(TRAIN + MODEL + FSDP, gradient_checkpointing=set_recompute, activation_checkpointing=set_recompute)
rules(TOP, model=set_model)
rules(MODEL, type=set_model, name=set_model, name_or_path=set_weights)
rules(TRAIN + MODEL, model_name_or_path=set_weights, pretrained_model_name_or_path=set_weights,
      num_classes=to("model.labels", some), num_labels=to("model.labels", some))
rules(TOP + MODEL, vocab_size=to("model.vocab", some), num_hidden_layers=to("model.n_layer", some),
      num_layers=to("model.n_layer", some), n_layers=to("model.n_layer", some), n_layer=to("model.n_layer", some),
      num_attention_heads=to("model.n_head", some), num_heads=to("model.n_head", some),
      n_heads=to("model.n_head", some), n_head=to("model.n_head", some),
      num_key_value_heads=to("model.n_kv_head", some), num_kv_heads=to("model.n_kv_head", some),
      hidden_size=to("model.n_embd", some), hidden_dim=to("model.n_embd", some), d_model=to("model.n_embd", some),
      n_embd=to("model.n_embd", some), intermediate_size=to("model.n_inner", some),
      rope_theta=to("model.rope_theta", real(1e12, above=True)), rms_norm_eps=to("model.norm_eps", real(1, above=True)),
      dropout=to("model.dropout", real(1, below=True)))
rules(TRAIN + MODEL + DATA, block_size=set_length, max_seq_len=set_length, seq_length=set_length,
      sequence_length=set_length, seq_len=set_length)
rules(TOP + DATA, tokenizer=set_tokenizer, dataset=set_dataset)
rules(DATA, path=data_file("data.train"), train=data_file("data.train"), val=data_file("data.val"), name=set_dataset)
rules(TRAIN + LOG, log_interval=to("train.log_every", some), logging_steps=to("train.log_every", some),
      log_every=to("train.log_every", some), log_dir=to("log.dir", text), run_name=set_run, experiment_name=set_run,
      wandb=TRACKER, use_wandb=TRACKER, tensorboard=TRACKER, project=TRACKER, project_name=TRACKER)
rules(("wandb",), project=TRACKER, entity=TRACKER, name=TRACKER, mode=TRACKER, enabled=TRACKER)
rules(TRAIN + LOG + EVALUATION, eval_interval=interval("train.eval_every", "eval_interval"),
      eval_steps=to("train.eval_every", count))
rules(TRAIN + LOG + CHECKPOINT, save_interval=interval("checkpoint.every_steps", "save_interval"),
      save_every=interval("checkpoint.every_steps", "save_every"), save_steps=to("checkpoint.every_steps", count),
      save_dir=to("checkpoint.dir", text), output_dir=to("checkpoint.dir", text),
      checkpoint_dir=to("checkpoint.dir", text))
rules(TRAIN + CLUSTER, num_gpus=set_gpus_per_node, nproc_per_node=set_gpus_per_node, num_nodes=set_nodes,
      world_size=fact("gpus"), backend=to("cluster.backend", BACKEND), device=to("cluster.device", DEVICE),
      master_addr=RENDEZVOUS, master_port=RENDEZVOUS, rank=RENDEZVOUS, local_rank=RENDEZVOUS)
rules(LORA, r=to("train.lora.rank", some), rank=to("train.lora.rank", some),
      alpha=to("train.lora.alpha", real(1000000, above=True)),
      lora_alpha=to("train.lora.alpha", real(1000000, above=True)),
      target_modules=set_lora_targets, targets=set_lora_targets, dropout=set_lora_dropout,
      lora_dropout=set_lora_dropout, bias=set_lora_bias,
      task_type=without("it follows from the data's kind"), enabled=TAKEN_ON)


def section_of(path):
    """The section of a key, without enclosing sections that do not matter."""
    parents = path[:-1]
    while len(parents) > 1 and parents[0] in AROUND:
        parents = parents[1:]
    return ".".join(parents)


def rule_of(path):
    """The rule of a path, or None."""
    return RULES.get((section_of(path), path[-1]))


def is_of_fsdp(path):
    return section_of(path) in FSDP or rule_of(path) in (set_sharding, set_offload, FSDP_DETAIL)


def switched_off(entries):
    """The sections that are off, {path as a tuple: the key that says so}; and the key that turns FSDP off, or None."""
    sections, fsdp = {}, None
    for _, path, value in entries:
        if value is not False:
            continue
        if path[-1] == "enabled" and len(path) > 1:
            sections[tuple(path[:-1])] = ".".join(path)
        if rule_of(path) is set_fsdp:
            fsdp = ".".join(path)
    return sections, fsdp
