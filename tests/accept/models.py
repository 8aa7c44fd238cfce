"""Topic models: model families beside GPT-2, published weights, and widely used data sets."""

import json

from accept.beside import (ADAMW, OPTIM, PLAIN, STEPS, ask, compare, dpt_ckpt, evaluate, example, losses_of,
                           make_folders, peer_python, run_alone, run_peer)
from accept.families import families_one_hash
from accept.family_speed import families_beside_torch
from accept.images import digits, resnet_beside_torchvision
from accept.memory import state_bytes
from cluster import ROOT, ClusterError

PEER = ROOT / "tests" / "accept" / "peer_transformers.py"
SEQUENCES, SEQ_LEN, TOKENS, BYTES = 8, 32, 60, 256
BATCH = {"train.global_batch": SEQUENCES, "train.micro_batch": 4, "train.seq_len": SEQ_LEN}
BF16 = {"train.precision": "bf16"}
RATE = 512  # of a step that shows the gradients: a power of two, and so large that the weights' rounding is not seen
TRAIN_STEPS = 200  # before a text is continued: an untrained model's two best tokens may differ by rounding alone
SENTENCE = "the quick brown fox jumps over the lazy dog and runs away. "
TINY_LLAMA = {"model.name": "llama", "model.n_layer": 2, "model.n_head": 4, "model.n_kv_head": 2, "model.n_embd": 64,
              "model.n_inner": 128, "model.context": 128}

# A family: dpt's settings, and whether it is large (the 20 steps must do for a text, then).
FAMILIES = {
    "gpt2": ({"model.n_layer": 2, "model.n_head": 4, "model.n_embd": 64, "model.context": 128}, False),
    "llama, grouped queries, tied": (TINY_LLAMA, False),
    "llama, untied, biases, rope scaling": (
        {**TINY_LLAMA, "model.head_size": 32, "model.tied_head": "false", "model.attention_bias": "true",
         "model.mlp_bias": "true", "model.rope_scaling": "llama3", "model.rope_factor": 4,
         "model.rope_original_context": 16}, False),
    "smollm2-135m": (
        {"model.name": "llama", "model.n_layer": 30, "model.n_head": 9, "model.n_kv_head": 3, "model.n_embd": 576,
         "model.n_inner": 1536, "model.context": 8192, "model.vocab": 49152, "model.rope_theta": 100000,
         "strategy.bucket_mib": 25}, True),
    "gpt2-124m": ({"model.n_layer": 12, "model.n_head": 12, "model.n_embd": 768, "model.context": 1024,
                   "model.vocab": 50257, "strategy.bucket_mib": 25}, True),
}

# Texts of different lengths with labels: one byte, some of them cut, none the longest of both micro-batches.
LABELS = 3
REVIEWS = [(0, "no"), (2, "good and cheap and near"), (1, "it is what it is, nothing more and nothing less than that"),
           (2, "!"), (0, "never again"), (1, "as ever"), (2, "the best that I have seen in all of my years here"),
           (0, "slow, cold and dear")]
LOGITS_OF = 3, 6  # of these rows, the shortest and the longest text

PEER_WEIGHTS = ROOT / "tests" / "accept" / "peer_weights.py"
PEER_PEFT = ROOT / "tests" / "accept" / "peer_peft.py"
LLAMA_CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "hidden_size": 64,
                "intermediate_size": 128, "max_position_embeddings": 128, "vocab_size": 256}
# What transformers saves for dpt to begin from: family, dtype (ours and torch's), whether in shards, config.
PUBLISHED = {
    "gpt2": ("fp16", "float16", True, {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 128, "vocab_size": 256}),
    "llama, grouped queries, tied": ("bf16", "bfloat16", False, {**LLAMA_CONFIG, "tie_word_embeddings": True}),
    "llama, untied, biases, rope scaling": (
        "fp32", "float32", True,
        {**LLAMA_CONFIG, "tie_word_embeddings": False, "head_dim": 32, "attention_bias": True, "mlp_bias": True,
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 16}}),
}


def run_text(root, sets):
    """run_alone on the sentence."""
    common = {**BATCH, "data.train": root / "text", "model.dropout": 0}
    (root / "text").write_bytes((SENTENCE * SEQUENCES)[:SEQUENCES * SEQ_LEN + 1].encode())
    return run_alone(root, {**common, **sets})


def train(root, sets):
    """Losses and the newest checkpoint of run_text."""
    outputs, newest = run_text(root, sets)
    return losses_of(outputs), newest


def beside_transformers(line, name, sets, large):
    folders = make_folders(line, name, "start", "sgd", "bf16", "adamw", "trained")
    _, start = train(folders["start"], {**sets, **PLAIN, "optimizer.lr": 0})
    _, after = train(folders["sgd"], {**sets, **PLAIN, "optimizer.lr": RATE})
    _, after_bf16 = train(folders["bf16"], {**sets, **PLAIN, **BF16, "optimizer.lr": RATE})
    losses, trained = train(folders["adamw"], {**sets, **ADAMW, "train.steps": STEPS})
    spec = {"text": str(folders["adamw"] / "text"), "seq_len": SEQ_LEN, "steps": STEPS, "after": str(after),
            "after_bf16": str(after_bf16), "rate": RATE, "prompt": SENTENCE[:10], "tokens": 0, **OPTIM}
    found = ask(PEER, start, spec)
    compare(line, name, losses, found)
    if not large:
        _, trained = train(folders["trained"], {**sets, **ADAMW, "train.steps": TRAIN_STEPS})
    compare_text(line, name, trained, {**spec, "steps": 0, "after": None, "tokens": TOKENS})


def compare_text(line, name, trained, spec):
    logprobs = line.folder / "logprobs.jsonl"
    ours = dpt_ckpt("generate", trained, "--prompt", spec["prompt"], "--temperature", 0, "--top-k", 0, "--max-tokens",
                    TOKENS, "--logprobs", logprobs).rstrip("\n")
    found = ask(PEER, trained, {**spec, "logprobs": str(logprobs)})
    theirs = found["text"].rstrip("\n")
    line.show(f"{name}: greedy text of {TOKENS} tokens", repr(ours), repr(theirs), ours == theirs)
    line.show(f"{name}: logits compared, as log-probabilities", found["logprobs"]["compared"], f"== {TOKENS * BYTES}",
              found["logprobs"]["compared"] == TOKENS * BYTES)
    line.at_most(f"{name}: largest difference of one", found["logprobs"]["worst"], 1e-4)


def llama_beside_transformers(line):
    """dpt's checkpoints open in transformers. PyTorch in double precision then has the same first gradients (relative
    L2 1e-4; for a bf16 step 1e-2 as a whole) and 20 losses (1e-4), and continues a text with the same 60 tokens and
    logits (1e-4; as logarithms of probabilities): GPT-2, Llama with grouped queries, tied and untied, with scaled
    rotary embeddings, SmolLM2-135M and GPT-2 124M."""
    peer_python("transformers")
    line.command(f"dpt-worker, then $DPT_TORCH_PYTHON {PEER.relative_to(ROOT)} CHECKPOINT SPEC")
    for name, (sets, large) in FAMILIES.items():
        if large and line.scale < 1:
            line.note(f"{name}: left out at this scale")
            continue
        beside_transformers(line, name, sets, large)


def reviews(line):
    """Settings of a run that trains on REVIEWS and evaluates on them, from a file of the line's folder."""
    table = line.folder / "reviews.tsv"
    table.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in REVIEWS))
    return {"model.labels": LABELS, "data.kind": "classification", "data.train": table, "data.val": table}


def labels_of(line, name, sets):
    folders = make_folders(line, name + " labels", "start", "sgd", "bf16", "adamw", "logits")
    sets = {**sets, **reviews(line)}
    outputs, start = run_text(folders["start"], {**sets, **PLAIN, "optimizer.lr": 0, "train.eval_every": 1})
    _, after = train(folders["sgd"], {**sets, **PLAIN, "optimizer.lr": RATE})
    _, after_bf16 = train(folders["bf16"], {**sets, **PLAIN, **BF16, "optimizer.lr": RATE})
    losses, trained = train(folders["adamw"], {**sets, **ADAMW, "train.steps": STEPS, "train.eval_every": STEPS})
    spec = {"table": str(sets["data.train"]), "seq_len": SEQ_LEN, "steps": STEPS, "after": str(after),
            "after_bf16": str(after_bf16), "rate": RATE, "tokens": 0, **OPTIM}
    found = ask(PEER, start, spec)
    compare(line, name, losses, found)
    (told,) = outputs.evaluations()
    line.at_most(f"{name}: difference of the validation loss", abs(told["val_loss"] - found["loss"]), 1e-4)
    line.show(f"{name}: accuracy of the first weights", told["val_accuracy"], f"== {found['accuracy']}",
              told["val_accuracy"] == found["accuracy"])
    found = ask(PEER, trained, {**spec, "steps": 0, "after": None})
    code, text, _ = evaluate(folders["adamw"], {**BATCH, **sets}, trained.parent)
    line.show(f"{name}: --eval of the last weights", (code, [t for t in text.splitlines() if "accuracy" in t]),
              f"Evaluation accuracy: {100 * found['accuracy']:.2f}%",
              code == 0 and f"Evaluation accuracy: {100 * found['accuracy']:.2f}%" in text.splitlines())
    worst = max(abs(found["logprobs"][row][label] + loss_with_label(folders["logits"], sets, trained, row, label))
                for row in LOGITS_OF for label in range(LABELS))
    line.at_most(f"{name}: largest difference of {LABELS * len(LOGITS_OF)} logits, as log-probabilities", worst, 1e-4)


def loss_with_label(root, sets, trained, row, label):
    """The loss of --eval for one text of REVIEWS with this label: minus the logarithm of its probability."""
    folder = root / f"{row}-{label}"
    folder.mkdir()
    (folder / "one.tsv").write_text(f"label\ttext\n{label}\t{REVIEWS[row][1]}\n")
    code, text, told = evaluate(folder, {**BATCH, **sets, "data.val": folder / "one.tsv"}, trained.parent)
    if code != 0:
        raise ClusterError(f"--eval: exit code {code}\n{text}")
    return told["val_loss"]


def labels_beside_transformers(line):
    """A classification (data.kind: classification) of texts of different lengths beside transformers'
    GPT2ForSequenceClassification and LlamaForSequenceClassification: the first gradients (relative L2 1e-4; in bf16
    1e-2 as a whole), 20 losses (1e-4), the loss and the accuracy, and the logits of two texts (1e-4; as logarithms of
    probabilities, which are the losses of these texts with each label)."""
    peer_python("transformers")
    line.command(f"dpt-worker, then $DPT_TORCH_PYTHON {PEER.relative_to(ROOT)} CHECKPOINT SPEC")
    for name, (sets, large) in FAMILIES.items():
        if not large:
            labels_of(line, name, sets)


def in_and_out(line, name, dtype, torch_dtype, sharded, config):
    root = line.folder / name.replace(", ", "-").replace(" ", "-")
    root.mkdir(parents=True)
    spec = {"model_type": name.split(",")[0], "dtype": torch_dtype, "shard_size": "100KB" if sharded else None,
            "config": config}
    run_peer(PEER_WEIGHTS, "make", root / "published", json.dumps(spec))
    still = {"optimizer.name": "sgd", "optimizer.momentum": 0, "optimizer.weight_decay": 0, "optimizer.lr": 0,
             "optimizer.schedule": "constant", "optimizer.min_lr": 0, "train.steps": 1}
    (root / "run").mkdir()
    losses, checkpoint = train(root / "run", {**FAMILIES[name][0], **still, "model.init_from": root / "published"})
    dpt_ckpt("export", checkpoint, root / "exported", "--dtype", dtype)
    dpt_ckpt("import", root / "published", root / "imported", "--dtype", dtype)
    for what in ("exported", "imported"):
        printed = run_peer(PEER_WEIGHTS, "compare", root / "published", root / what, root / "run" / "text")
        found = json.loads(printed[0])
        line.show(f"{name}, {dtype}: tensors of the {what} folder with the same bytes", found["same_bytes"],
                  f"== {found['tensors']}", found["same_bytes"] == found["tensors"])
        line.at_most(f"{name}, {dtype}: largest difference of logits of the {what} folder", found["logits"], 0.0)
    line.at_most(f"{name}, {dtype}: first loss beside transformers'", abs(losses[0] - found["loss"]), 1e-4)


def weights_in_and_out(line):
    """Folders of transformers with random weights, in fp16, bf16 and fp32, in one file and in shards: dpt starts from
    them (model.init_from) with transformers' loss (1e-4). The export of the run and the direct import have the same
    bytes by tensor and the same logits in from_pretrained."""
    peer_python("transformers")
    line.command(f"$DPT_TORCH_PYTHON {PEER_WEIGHTS.relative_to(ROOT)}, dpt-worker, dpt-ckpt export, dpt-ckpt import")
    for name, published in PUBLISHED.items():
        in_and_out(line, name, *published)


def adapters_of(line, name, config, labels):
    what = f"{name}, labels" if labels else name
    root = line.folder / ("lora-" + what.replace(", ", "-").replace(" ", "-"))
    root.mkdir(parents=True)
    family = {**FAMILIES[name][0], **(reviews(line) if labels else {})}
    spec = {"model_type": name.split(",")[0], "dtype": "float32", "shard_size": None, "config": config}
    run_peer(PEER_WEIGHTS, "make", root / "base", json.dumps(spec))
    (root / "run").mkdir()
    sets = {**family, **ADAMW, "train.steps": STEPS, "model.init_from": root / "base",
            "train.lora.rank": 4, "train.lora.alpha": 8}
    losses, checkpoint = train(root / "run", sets)
    dpt_ckpt("export", checkpoint, root / "adapters")
    dpt_ckpt("export", checkpoint, root / "merged", "--merge")
    (root / "after").mkdir()
    still, _ = train(root / "after", {**family, **PLAIN, "optimizer.lr": 0, "model.init_from": root / "merged"})
    data = {"table": str(family["data.train"]), "labels": LABELS} if labels else {"text": str(root / "run" / "text")}
    printed = run_peer(PEER_PEFT, root / "base", checkpoint, root / "adapters", root / "merged",
                       json.dumps({"seq_len": SEQ_LEN, **data}))
    found = json.loads(printed[0])
    line.note(f"{what}: {found['model']}, {found['tensors']} tensors, {found['trainable']:,} numbers beside the base")
    line.show(f"{what}: loss of the last step", losses[-1], f"< {losses[0]}", losses[-1] < losses[0])
    line.at_most(f"{what}: difference of the merged model's loss beside PEFT's", abs(still[0] - found["loss"]), 1e-5)
    line.at_most(f"{what}: largest difference of logits, PEFT's and the merged model's", found["logits"], 1e-4)
    line.at_most(f"{what}: largest difference of a merged weight", found["merged"], 1e-6)
    line.at_most(f"{what}: largest difference of logits, the checkpoint's folder and the exported one",
                 found["checkpoint"], 0.0)


def adapters_beside_peft(line):
    """train.lora over folders of transformers, of next tokens and of labels: PeftModel.from_pretrained opens the folder
    of dpt-ckpt export, has the logits (1e-4) and the loss (1e-5) of the model of dpt-ckpt export --merge, and merges to
    the same weights (1e-6). The checkpoint's own folder has the same logits in PEFT, and in transformers alone, which
    finds the base through the folder. tests/worker/model/reference.py compares the gradients of every adapter with
    PEFT's when it records the references."""
    peer_python("transformers", "peft")
    line.command(f"dpt-worker, dpt-ckpt export, then $DPT_TORCH_PYTHON {PEER_PEFT.relative_to(ROOT)}")
    for name, (_, _, _, config) in PUBLISHED.items():
        for labels in (False, True):
            adapters_of(line, name, config, labels)


def five_languages(line):
    """deploy/languages, one command on a bare machine: a small Llama names the language of manual pages of the
    validation set, one of five, in at least 97 of 100 cases and within minutes."""
    example(line, "languages", "texts of val.csv by their language, %", 97)


LINES = [llama_beside_transformers, labels_beside_transformers, weights_in_and_out, adapters_beside_peft,
         families_one_hash, five_languages, state_bytes, resnet_beside_torchvision, digits, families_beside_torch]
