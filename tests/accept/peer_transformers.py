#!/usr/bin/env python3
"""transformers beside dpt: opens a checkpoint of dpt and prints, as one line of JSON, what PyTorch computes from it.

    python3 peer_transformers.py CHECKPOINT SPEC        (needs torch and transformers)

SPEC is JSON: {"text": FILE, "seq_len": T, "steps": N, "lr": …, "min_lr": …, "betas": …, "eps": …, "weight_decay": …,
"grad_clip": …, "after": CHECKPOINT or null, "after_bf16": another, "rate": …, "prompt": TEXT, "tokens": N, "logprobs":
FILE}. The text has one sequence more than a step's batch takes, so every step trains on all of it. Prints {"model",
"parameters", "losses": [N] in double precision, "own": the most that PyTorch's fp32 differs from one of them,
"gradients": {"worst", "tensor", "whole", "own"} (relative L2 of (weights before - after) / rate, where dpt made a step
of plain SGD with that rate to "after", against the first gradient in double precision: of the worst tensor, and of all;
"own" of PyTorch's in fp32), "bf16": the same of the step to "after_bf16", which dpt made in bf16, and of PyTorch's in
bf16, "text": the greedy continuation of the prompt by the weights of CHECKPOINT, "logprobs": {"worst", "compared"} (the
largest difference of log-probabilities from those of FILE, which dpt-ckpt generate wrote with the same prompt, and how
many there are)}. In double precision transformers still computes the norms and the softmax of a Llama in fp32.

With "table": FILE in place of the text, lines of a label and a text behind the first, the model is a classifier and its
loss the mean over all of them; "loss", "accuracy" and "logprobs" (of each text and label) are those of the weights of
CHECKPOINT.
"""

import json
import math
import sys
from pathlib import Path

import torch
import transformers


def batch_of(spec):
    """(G, T) tokens and targets of the whole text; or (G, T) padded tokens and (G) labels."""
    if "table" in spec:
        rows = [line.split("\t") for line in Path(spec["table"]).read_text().splitlines()[1:]]
        texts = [list(text.encode())[:spec["seq_len"]] for _, text in rows]
        longest = max(map(len, texts))
        return (torch.tensor([text + [0] * (longest - len(text)) for text in texts]),
                torch.tensor([int(label) for label, _ in rows]))
    tokens = torch.tensor(list(Path(spec["text"]).read_bytes()))
    t = spec["seq_len"]
    n = (len(tokens) - 1) // t
    return tokens[:n * t].view(n, t), tokens[1:n * t + 1].view(n, t)


def logits_of(model, batch):
    return model(batch[0], attention_mask=(batch[0] != 0).long()).logits


def mean_loss(logits, batch):
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), batch[1].reshape(-1))


def loss_of(model, batch):
    return mean_loss(logits_of(model, batch), batch)


def learning_rate(step, spec):
    part = step / (spec["steps"] - 1) if spec["steps"] > 1 else 0.0
    return spec["min_lr"] + (spec["lr"] - spec["min_lr"]) * 0.5 * (1.0 + math.cos(math.pi * part))


def losses(folder, spec, dtype):
    model = load(folder, spec).to(dtype)
    named = list(model.named_parameters())
    groups = [{"params": [p for _, p in named if p.dim() > 1], "weight_decay": spec["weight_decay"]},
              {"params": [p for _, p in named if p.dim() == 1], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=spec["lr"], betas=tuple(spec["betas"]), eps=spec["eps"])
    batch, found = batch_of(spec), []
    for step in range(spec["steps"]):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), spec["grad_clip"])
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, spec)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


def gradients(folder, spec, dtype):
    """{tensor: PyTorch's first gradient}, of weights and activations in `dtype`."""
    model, batch = load(folder, spec).to(dtype), batch_of(spec)
    logits = logits_of(model, batch)
    mean_loss(logits if dtype == torch.float64 else logits.float(), batch).backward()
    return {name: p.grad.double() for name, p in model.named_parameters()}


def taken(folder, spec, after):
    """{tensor: the gradient by which dpt's step of plain SGD changed the weights}."""
    left = dict(load(after, spec).named_parameters())
    return {name: (p.double() - left[name].double()).detach() / spec["rate"]
            for name, p in load(folder, spec).named_parameters()}


def worst_of(found, exact):
    relative = {name: float((found[name] - each).norm() / each.norm()) for name, each in exact.items()}
    worst = max(relative, key=relative.get)
    whole = math.sqrt(sum(float((found[name] - each).norm())**2 for name, each in exact.items())
                      / sum(float(each.norm())**2 for each in exact.values()))
    return {"worst": relative[worst], "tensor": worst, "whole": whole}


def first_gradients(folder, spec):
    exact = gradients(folder, spec, torch.float64)
    own, own_bf16 = (worst_of(gradients(folder, spec, dtype), exact) for dtype in (torch.float32, torch.bfloat16))
    return {"gradients": {**worst_of(taken(folder, spec, spec["after"]), exact), "own": own},
            "bf16": {**worst_of(taken(folder, spec, spec["after_bf16"]), exact), "own": own_bf16}}


def load(folder, spec, **config):
    """`config` replaces members of the folder's config.json."""
    kind = transformers.AutoModelForSequenceClassification if "table" in spec else transformers.AutoModelForCausalLM
    return kind.from_pretrained(folder, dtype=torch.float32, **config)


def judge(model, spec):
    """Loss, accuracy and log-probabilities."""
    batch = batch_of(spec)
    with torch.no_grad():
        logits = logits_of(model, batch)
        loss = mean_loss(logits, batch)
    return {"loss": float(loss), "accuracy": float((logits.argmax(1) == batch[1]).double().mean()),
            "logprobs": torch.log_softmax(logits, 1).tolist()}


def greedy(folder, spec):
    model = load(folder, spec).eval()
    tokens = torch.tensor([list(spec["prompt"].encode())])
    made = model.generate(tokens, attention_mask=torch.ones_like(tokens), do_sample=False,
                          max_new_tokens=spec["tokens"], pad_token_id=0)
    return bytes(made[0].tolist()).decode("utf-8", "replace")


def log_probabilities(folder, spec):
    """Of all tokens that dpt knows, at each position of the text that it drew."""
    lines = [json.loads(line) for line in Path(spec["logprobs"]).read_text().splitlines()]
    ours = torch.tensor([[logprob for _, logprob in sorted(line["top"])] for line in lines])
    prompt = list(spec["prompt"].encode())
    tokens = torch.tensor([prompt + [line["token"] for line in lines]])
    with torch.no_grad():
        logits = load(folder, spec).eval()(tokens).logits[0, len(prompt) - 1:-1, :ours.shape[1]]
    return {"worst": float((ours - torch.log_softmax(logits, 1)).abs().max()), "compared": ours.numel()}


def main(folder, spec):
    torch.set_num_threads(2)
    model = load(folder, spec)
    found = {"model": type(model).__name__, "parameters": sum(p.numel() for p in model.parameters())}
    if "table" in spec:
        found.update(judge(model.eval(), spec))
    del model
    if spec["steps"]:
        found["losses"] = losses(folder, spec, torch.float64)
        found["own"] = max(abs(a - b) for a, b in zip(found["losses"], losses(folder, spec, torch.float32)))
    if spec["after"]:
        found.update(first_gradients(folder, spec))
    if spec["tokens"]:
        found["text"] = greedy(folder, spec)
        found["logprobs"] = log_probabilities(folder, spec)
    print(json.dumps(found))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(sys.argv[1], json.loads(sys.argv[2]))
