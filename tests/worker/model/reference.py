#!/usr/bin/env python3
"""Records what PyTorch computes for a tiny GPT-2, for gpt2_reference_test.c to be held against.

    python3 reference.py reference.bin        (needs numpy and torch, any version from 1.13)

The model is written out here from torch's tensor operations, in double precision, independently of dpt's
code: random weights everywhere (norms and biases too, so that no factor of one or term of zero hides an
error), G slots of B x T fixed tokens, T below the context. Recorded: the weights, the first step's gradient of
every tensor (mean over all tokens of all slots, before clipping), and the losses and gradient norms of ten
steps of torch.optim.AdamW and SGD (with momentum, in Nesterov's form, without) from those weights, with
clip_grad_norm_, decay on matrices alone, and warm-up plus cosine.

File (little-endian; text: u16 length, bytes): "dptgpt2r", u32 format 2, text "torch <version>, reference.py
<revision>", u32 n_layer n_head n_embd context vocab B T G steps warmup, f64 beta1 beta2 eps weight_decay
grad_clip, i32 tokens[G][B][T+1], u32 tensors, per tensor in the order of the flat vector: text name, u32 numel,
f32 weight[numel], f32 gradient[numel]; u32 runs, per run: text optimizer ("adamw", "sgd"), u32 nesterov, f64 lr
min_lr momentum, f64 loss[steps], f64 norm[steps].
"""

import math
import struct
import sys

import numpy as np
import torch

REVISION = 2
LAYER, HEAD, EMBD, CONTEXT, VOCAB = 2, 3, 48, 32, 67
B, T, G, STEPS, WARMUP = 3, 17, 2, 10, 3
BETA1, BETA2, EPS, DECAY, CLIP = 0.9, 0.95, 1e-8, 0.1, 1.0
RUNS = [  # optimizer, nesterov, lr, min_lr, momentum
    ("adamw", False, 1e-2, 1e-3, 0.0),
    ("sgd", False, 1e-1, 1e-2, 0.9),
    ("sgd", True, 1e-1, 1e-2, 0.9),
    ("sgd", False, 2e-1, 2e-2, 0.0),
]


def shapes():
    """Names and shapes in the order of dpt's flat vector; linear weights are (in, out)."""
    c = EMBD
    yield "transformer.wte.weight", (VOCAB, c)
    yield "transformer.wpe.weight", (CONTEXT, c)
    for i in range(LAYER):
        h = f"transformer.h.{i}."
        yield h + "ln_1.weight", (c,)
        yield h + "ln_1.bias", (c,)
        yield h + "attn.c_attn.weight", (c, 3 * c)
        yield h + "attn.c_attn.bias", (3 * c,)
        yield h + "attn.c_proj.weight", (c, c)
        yield h + "attn.c_proj.bias", (c,)
        yield h + "ln_2.weight", (c,)
        yield h + "ln_2.bias", (c,)
        yield h + "mlp.c_fc.weight", (c, 4 * c)
        yield h + "mlp.c_fc.bias", (4 * c,)
        yield h + "mlp.c_proj.weight", (4 * c, c)
        yield h + "mlp.c_proj.bias", (c,)
    yield "transformer.ln_f.weight", (c,)
    yield "transformer.ln_f.bias", (c,)


def random_weight(name, shape, rng):
    if ".ln_" in name and name.endswith("weight"):
        value = 1.0 + 0.2 * rng.standard_normal(shape)
    elif len(shape) == 2:
        value = 0.15 * rng.standard_normal(shape)
    else:
        value = 0.1 * rng.standard_normal(shape)
    return value.astype(np.float32)


def norm(x, w, b):
    return torch.nn.functional.layer_norm(x, (EMBD,), w, b, 1e-5)


def gelu(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


def attention(x, p, h):
    q, k, v = (x @ p[h + "attn.c_attn.weight"] + p[h + "attn.c_attn.bias"]).split(EMBD, dim=2)
    q, k, v = (z.view(z.shape[0], z.shape[1], HEAD, EMBD // HEAD).transpose(1, 2) for z in (q, k, v))
    scores = q @ k.transpose(2, 3) / math.sqrt(EMBD // HEAD)
    future = torch.triu(torch.ones(x.shape[1], x.shape[1], dtype=torch.bool), 1)
    y = torch.softmax(scores.masked_fill(future, -math.inf), dim=3) @ v
    y = y.transpose(1, 2).reshape(x.shape)
    return y @ p[h + "attn.c_proj.weight"] + p[h + "attn.c_proj.bias"]


def mean_loss(p, tokens):
    x = p["transformer.wte.weight"][tokens[:, :-1]] + p["transformer.wpe.weight"][:T]
    for i in range(LAYER):
        h = f"transformer.h.{i}."
        x = x + attention(norm(x, p[h + "ln_1.weight"], p[h + "ln_1.bias"]), p, h)
        y = norm(x, p[h + "ln_2.weight"], p[h + "ln_2.bias"])
        y = gelu(y @ p[h + "mlp.c_fc.weight"] + p[h + "mlp.c_fc.bias"])
        x = x + y @ p[h + "mlp.c_proj.weight"] + p[h + "mlp.c_proj.bias"]
    x = norm(x, p["transformer.ln_f.weight"], p["transformer.ln_f.bias"])
    logits = x @ p["transformer.wte.weight"].T
    return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), tokens[:, 1:].reshape(-1))


def learning_rate(step, lr, min_lr):
    if step < WARMUP:
        return lr * (step + 1) / WARMUP
    part = (step - WARMUP) / (STEPS - 1 - WARMUP)
    return min_lr + (lr - min_lr) * 0.5 * (1.0 + math.cos(math.pi * part))


def train(weights, batch, name, nesterov, lr, min_lr, momentum):
    """Losses and norms of a run, and the first step's gradients."""
    params = {n: torch.tensor(w.astype(np.float64), requires_grad=True) for n, w in weights.items()}
    groups = [
        {"params": [p for p in params.values() if p.dim() == 2], "weight_decay": DECAY},
        {"params": [p for p in params.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    if name == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=(BETA1, BETA2), eps=EPS)
    else:
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    losses, norms, grads = [], [], {}
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(params, batch)
        loss.backward()
        if step == 0:
            grads = {n: p.grad.numpy().astype(np.float32) for n, p in params.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(params.values()), CLIP)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lr, min_lr)
        optimizer.step()
        losses.append(float(loss))
        print(f"{name} {step}: loss {losses[-1]:.6f}, norm {norms[-1]:.6f}, lr {group['lr']:.6f}")
    return losses, norms, grads


def text(value):
    return struct.pack("<H", len(value)) + value.encode()


def main(path):
    rng = np.random.default_rng(20240520)
    weights = {name: random_weight(name, shape, rng) for name, shape in shapes()}
    tokens = rng.integers(0, VOCAB, (G, B, T + 1), dtype=np.int32)
    batch = torch.tensor(tokens.astype(np.int64)).reshape(G * B, T + 1)
    results = [train(weights, batch, *run) for run in RUNS]
    grads = results[0][2]
    with open(path, "wb") as out:
        out.write(b"dptgpt2r" + struct.pack("<I", 2))
        out.write(text(f"torch {torch.__version__}, reference.py {REVISION}"))
        out.write(struct.pack("<10I", LAYER, HEAD, EMBD, CONTEXT, VOCAB, B, T, G, STEPS, WARMUP))
        out.write(struct.pack("<5d", BETA1, BETA2, EPS, DECAY, CLIP))
        out.write(tokens.astype("<i4").tobytes())
        out.write(struct.pack("<I", len(weights)))
        for name, weight in weights.items():
            out.write(text(name) + struct.pack("<I", weight.size))
            out.write(weight.astype("<f4").tobytes() + grads[name].astype("<f4").tobytes())
        out.write(struct.pack("<I", len(RUNS)))
        for (name, nesterov, lr, min_lr, momentum), (losses, norms, _) in zip(RUNS, results):
            out.write(text(name) + struct.pack("<I3d", nesterov, lr, min_lr, momentum))
            out.write(struct.pack(f"<{STEPS}d", *losses) + struct.pack(f"<{STEPS}d", *norms))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
