#!/usr/bin/env python3
"""Records what PyTorch computes for tiny models, for reference_test.c to be held against.

    python3 reference.py FOLDER [NAME ...]        (needs numpy, torch, torchvision, transformers and peft)

Writes reference_NAME.bin for each model of MODELS, or for those that are named. The models are written out here from
torch's tensor operations, in double precision, independently of dpt's code; transformers' own model is given the same
weights and must have the same loss. Weights are random everywhere (norms and biases too, so that no factor of one or
term of zero hides an error), G slots of B x T fixed tokens, T below the context. Recorded: the weights, the first
step's gradient of every tensor (mean over all tokens of all slots, before clipping), and the losses and gradient norms
of ten steps of torch.optim.AdamW and SGD (with momentum, in Nesterov's form, without) from those weights, with
clip_grad_norm_, decay on matrices alone, and warm-up plus cosine. A model with labels is given texts of 1 to T tokens,
padded with 0, which no text has, and its loss is the mean over all texts of all slots. Residual networks are held
against torchvision's blocks. Their batch norm is of each slot; the recorded gradient of a running statistic is the mean
over all slots of their own mean, or unbiased variance. A step moves it by 1 - (1 - MOMENTUM)^G of the way to that.
Their loss in evaluation, by the running statistics, is recorded too, of the first weights and of those after the first
run.

It prints how far PyTorch is from double precision where it computes the same in bf16 and fp16.

File (little-endian; text: u16 length, bytes): "dptmodel", u32 format 3, text "torch <version>, reference.py
<revision>", text of dpt's config of the model, u32 B T G steps warmup, f64 beta1 beta2 eps weight_decay grad_clip, i32
tokens[G][B][T+1] (with labels [G][B][T+2]: the tokens, their number, the label), u32 tensors, per tensor in the order
of the flat vector: text name, u32 numel, f32 weight[numel], f32 gradient[numel]; u32 runs, per run: text optimizer
("adamw", "sgd"), u32 nesterov, f64 lr min_lr momentum, f64 loss[steps], f64 norm[steps]. Of images: T is 1, samples are
[G][B][S*S*3+1], f32 values and the label; behind the runs f64 loss in evaluation, u32 right, f64 loss after run 0.

Of a model with adapters (Lora) the tensors are the adapters' and, with labels, the head; PEFT's model of the same
weights must have the same loss and the same gradients. The format is 4: behind the tensors the base's follow, u32
tensors, per tensor text name, u32 numel, f32 weight[numel].
"""

import math
import struct
import sys
from pathlib import Path

import numpy as np
import peft
import torch

from reference_language import Gpt2, Llama
from reference_resnet import Resnet, check_torchvision

REVISION = 5
B, T, G, STEPS, WARMUP = 3, 17, 2, 10, 3
BETA1, BETA2, EPS, DECAY, MOMENTUM = 0.9, 0.95, 1e-8, 0.1, 0.1
RUNS = [  # optimizer, nesterov, lr, min_lr, momentum
    ("adamw", False, 1e-2, 1e-3, 0.0),
    ("sgd", False, 1e-1, 1e-2, 0.9),
    ("sgd", True, 1e-1, 1e-2, 0.9),
    ("sgd", False, 2e-1, 2e-2, 0.0),
]


class Lora:
    """Adapters of another model's linear layers, whose other weights stay."""

    def __init__(self, of, rank, alpha, targets, pace, clip):
        self.of, self.rank, self.alpha, self.targets = of, rank, alpha, targets
        self.labels, self.vocab, self.spread = of.labels, of.vocab, of.spread
        self.pace, self.clip = pace, clip
        self.base = {}  # tensors in double precision

    def config(self):
        return f"{self.of.config()[:-1]}, init_from: recorded}}"

    def train_keys(self):
        return f", lora: {{rank: {self.rank}, alpha: {self.alpha}, targets: [{', '.join(self.targets)}]}}"

    def out_in(self, shape):
        return shape if isinstance(self.of, Llama) else shape[::-1]

    def shapes(self):
        for name, shape in self.of.shapes():
            if len(shape) == 2 and name.split(".")[-2] in self.targets:
                out, inner = self.out_in(shape)
                yield "base_model.model." + name.replace(".weight", ".lora_A.weight"), (self.rank, inner)
                yield "base_model.model." + name.replace(".weight", ".lora_B.weight"), (out, self.rank)
        if self.labels:
            yield "base_model.model.score.weight", (self.labels, self.of.embd)

    def whole(self, p):
        """The base's tensors with the adapters' added."""
        weights = dict(self.base)
        for name, b in p.items():
            if name.endswith(".lora_B.weight"):
                added = self.alpha / self.rank * (b @ p[name.replace("lora_B", "lora_A")])
                of = name.removeprefix("base_model.model.").replace(".lora_B", "")
                weights[of] = weights[of] + (added if isinstance(self.of, Llama) else added.T)
        if self.labels:
            weights["score.weight"] = p["base_model.model.score.weight"]
        return weights

    def states(self, p, tokens):
        return self.of.states(p, tokens)

    def output(self):
        return self.of.output()

    def peft(self, p):
        """PEFT's model with these weights."""
        config = peft.LoraConfig(
            r=self.rank, lora_alpha=self.alpha, target_modules=self.targets, lora_dropout=0.0,
            fan_in_fan_out=isinstance(self.of, Gpt2), task_type="SEQ_CLS" if self.labels else "CAUSAL_LM")
        theirs = self.of.transformers().double().eval()
        load(theirs, self.of, self.base)
        theirs = peft.get_peft_model(theirs, config).double().eval()
        left = peft.set_peft_model_state_dict(theirs, {n: w.detach() for n, w in p.items()})
        assert not left.unexpected_keys, left
        return theirs


MODELS = {
    "gpt2": Gpt2(),
    "llama": Llama(48, (6, 2), 8, 80, tied=True, bias=False, scaling=None),
    "llama_untied": Llama(40, (2, 1), 32, 64, tied=False, bias=True, scaling=(4.0, 1.0, 4.0, 16)),
    "gpt2_labels": Gpt2(labels=5),
    "llama_labels": Llama(48, (6, 2), 8, 80, tied=True, bias=False, scaling=None, labels=5),
    "resnet": Resnet(8, [1, 2, 1], 13, deep=False),
    "resnet_deep": Resnet(7, [1, 2], 31, deep=True),
    "gpt2_lora": Lora(Gpt2(), 4, 6, ["c_attn", "c_proj", "c_fc"], pace=1.0, clip=1.0),
    "llama_lora": Lora(Llama(40, (2, 1), 32, 64, tied=False, bias=True, scaling=(4.0, 1.0, 4.0, 16)), 4, 8,
                       ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], pace=1.0,
                       clip=0.65),
    "llama_labels_lora": Lora(Llama(48, (6, 2), 8, 80, tied=True, bias=False, scaling=None, labels=5), 8, 8,
                              ["q_proj", "v_proj"], pace=0.2, clip=2.9),
}


def random_weight(name, shape, spread, rng):
    if len(shape) == 4:
        value = rng.standard_normal(shape) / math.sqrt(np.prod(shape[1:]))
    elif name.endswith("running_var"):
        value = rng.uniform(0.5, 1.5, shape)
    elif "norm" in name or ".ln_" in name or "bn" in name or "downsample.1" in name:
        value = 0.2 * rng.standard_normal(shape) + (1.0 if name.endswith("weight") else 0.0)
    elif len(shape) == 2:
        value = spread * rng.standard_normal(shape)
    else:
        value = 0.1 * rng.standard_normal(shape)
    return value.astype(np.float32)


def batch_of(model, rng):
    """The samples of a model as the file stores them: (G, B, columns)."""
    if isinstance(model, Resnet):
        images = rng.standard_normal((G, B, model.side * model.side * 3 + 1)).astype(np.float32)
        images[..., -1] = rng.integers(0, model.labels, (G, B))
        return images
    if not model.labels:
        return rng.integers(0, model.vocab, (G, B, T + 1), dtype=np.int32)
    rows = rng.integers(1, model.vocab, (G, B, T + 2), dtype=np.int32)
    rows[..., T] = rng.integers(1, T + 1, (G, B))
    rows[0, 0, T], rows[1, 1, T] = T, 1  # the first slot has the longest text, another the shortest
    rows[..., T + 1] = rng.integers(0, model.labels, (G, B))
    rows[..., :T] *= np.arange(T) < rows[..., T:T + 1]
    return rows


def whole(model, p):
    return model.whole(p) if isinstance(model, Lora) else p


def mean_loss(model, p, batch):
    if isinstance(model, Resnet):
        return model.losses(p, batch.reshape(G, B, -1))[0]
    p = whole(model, p)
    if model.labels:
        states = model.states(p, batch[:, :T])[torch.arange(len(batch)), batch[:, T] - 1]
        targets = batch[:, T + 1]
    else:
        states, targets = model.states(p, batch[:, :-1]), batch[:, 1:]
    logits = states @ p[model.output()].T
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def loss_of_transformers(theirs, model, batch):
    """The loss of transformers' model, which finds the end of a text by the padding."""
    tokens, targets = (batch[:, :T], batch[:, T + 1]) if model.labels else (batch[:, :-1], batch[:, 1:])
    logits = theirs(tokens).logits
    return torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1))


def load(theirs, model, state):
    missing = theirs.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
    if not model.labels:
        theirs.tie_weights()


def check_adapters(model, weights, batch):
    """PEFT has the same loss, and the same gradient of every tensor."""
    state = {n: torch.tensor(w.astype(np.float64), requires_grad=True) for n, w in weights.items()}
    theirs = model.peft(state)
    loss, ours = loss_of_transformers(theirs, model, batch), mean_loss(model, state, batch)
    loss.backward()
    ours.backward()
    print(f"peft: loss {float(loss.detach()):.9f}, here {float(ours.detach()):.9f}")
    assert abs(float((loss - ours).detach())) < 1e-6
    found = {n.replace(".default", "").replace(".modules_to_save", ""): p.grad
             for n, p in theirs.named_parameters() if p.requires_grad}
    assert found.keys() == state.keys(), found.keys() ^ state.keys()
    for name, p in state.items():
        assert float((found[name] - p.grad).norm() / p.grad.norm()) < 1e-5, name


def check(model, weights, batch):
    """transformers has the same loss from the same weights."""
    if isinstance(model, Resnet):
        check_torchvision(model, weights, batch.reshape(G, B, -1))
        return
    theirs = model.transformers().double().eval()
    state = {n: torch.tensor(w.astype(np.float64)) for n, w in weights.items()}
    load(theirs, model, state)
    with torch.no_grad():
        loss = loss_of_transformers(theirs, model, batch)
        ours = mean_loss(model, state, batch)
    print(f"transformers: loss {float(loss):.9f}, here {float(ours):.9f}")
    assert abs(float(loss - ours)) < 1e-6  # their rotary tables are in single precision


def learning_rate(step, lr, min_lr):
    if step < WARMUP:
        return lr * (step + 1) / WARMUP
    part = (step - WARMUP) / (STEPS - 1 - WARMUP)
    return min_lr + (lr - min_lr) * 0.5 * (1.0 + math.cos(math.pi * part))


def train(model, weights, batch, name, nesterov, lr, min_lr, momentum):
    """Losses and norms of a run, and the first step's gradients."""
    state = {n: torch.tensor(w.astype(np.float64), requires_grad="running" not in n) for n, w in weights.items()}
    params = {n: p for n, p in state.items() if p.requires_grad}
    groups = [
        {"params": [p for p in params.values() if p.dim() > 1], "weight_decay": DECAY},
        {"params": [p for p in params.values() if p.dim() == 1], "weight_decay": 0.0},
    ]
    if name == "adamw":
        optimizer = torch.optim.AdamW(groups, lr=lr, betas=(BETA1, BETA2), eps=EPS)
    else:
        optimizer = torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    losses, norms, grads, images = [], [], {}, isinstance(model, Resnet)
    for step in range(STEPS):
        optimizer.zero_grad()
        loss = mean_loss(model, state, batch)
        loss.backward()
        if step == 0:
            grads = {n: (p.grad if n in params else model.batch_stats[n]).numpy().astype(np.float32)
                     for n, p in state.items()}
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(params.values()), model.clip)))
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, lr, min_lr)
        optimizer.step()
        for statistic, mean in (model.batch_stats.items() if images else ()):
            state[statistic] += (1 - (1 - MOMENTUM)**G) * (mean - state[statistic])
        losses.append(float(loss.detach()))
        print(f"{name} {step}: loss {losses[-1]:.6f}, norm {norms[-1]:.6f}, lr {group['lr']:.6f}")
    return losses, norms, grads, float(model.evaluation(state, batch.reshape(G, B, -1))[0]) if images else None


def tell_own_distance(model, weights, base, batch, grads):
    """How far PyTorch's own first gradients are from `grads`, all in 16 bits: reference_test.c states it."""
    for dtype in (torch.bfloat16, torch.float16):
        model.base = {n: torch.tensor(w).to(dtype) for n, w in base.items()}
        state = {n: torch.tensor(w).to(dtype).requires_grad_("running" not in n) for n, w in weights.items()}
        mean_loss(model, state, batch.to(dtype) if isinstance(model, Resnet) else batch).backward()
        off = {n: np.linalg.norm(p.grad.double().numpy() - grads[n]) / np.linalg.norm(grads[n])
               for n, p in state.items() if p.requires_grad}
        print(f"PyTorch in {dtype}: worst first gradient off by {max(off.values()):.2g}, {max(off, key=off.get)}")


def text(value):
    return struct.pack("<H", len(value)) + value.encode()


def record(model, path):
    rng = np.random.default_rng(20240520)
    weights = {name: random_weight(name, shape, model.spread, rng) for name, shape in model.shapes()}
    tokens = batch_of(model, rng)
    images = isinstance(model, Resnet)
    batch = torch.tensor(tokens.astype(np.float64 if images else np.int64)).reshape(G * B, -1)
    base = {}
    if isinstance(model, Lora):
        base = {name: random_weight(name, shape, model.spread, rng) for name, shape in model.of.shapes()}
        model.base = {n: torch.tensor(w.astype(np.float64)) for n, w in base.items()}
        check_adapters(model, weights, batch)
    else:
        check(model, weights, batch)
    runs = [(name, nesterov, lr * model.pace, min_lr * model.pace, m) for name, nesterov, lr, min_lr, m in RUNS]
    results = [train(model, weights, batch, *run) for run in runs]
    grads = results[0][2]
    with open(path, "wb") as out:
        out.write(b"dptmodel" + struct.pack("<I", 4 if base else 3))
        out.write(text(f"torch {torch.__version__}, reference.py {REVISION}"))
        kind = "classification, tokenizer: hf, tokenizer_json: none.json" if model.labels else "tokens"
        data = f"kind: images, image_size: {model.side}" if images else f"kind: {kind}"
        t, keys = 1 if images else T, model.train_keys() if base else ""
        out.write(text(f"{model.config()}\ndata: {{{data}}}\ntrain: {{seq_len: {t}{keys}}}\n"))
        out.write(struct.pack("<5I", B, t, G, STEPS, WARMUP))
        out.write(struct.pack("<5d", BETA1, BETA2, EPS, DECAY, model.clip))
        if images:
            labels = tokens[..., -1:].astype("<i4").view("<f4")
            out.write(np.concatenate((tokens[..., :-1].astype("<f4"), labels), axis=2).tobytes())
        else:
            out.write(tokens.astype("<i4").tobytes())
        out.write(struct.pack("<I", len(weights)))
        for name, weight in weights.items():
            out.write(text(name) + struct.pack("<I", weight.size))
            out.write(weight.astype("<f4").tobytes() + grads[name].astype("<f4").tobytes())
        if base:
            out.write(struct.pack("<I", len(base)))
            for name, weight in base.items():
                out.write(text(name) + struct.pack("<I", weight.size) + weight.astype("<f4").tobytes())
        out.write(struct.pack("<I", len(runs)))
        for (name, nesterov, lr, min_lr, momentum), (losses, norms, *_) in zip(runs, results):
            out.write(text(name) + struct.pack("<I3d", nesterov, lr, min_lr, momentum))
            out.write(struct.pack(f"<{STEPS}d", *losses) + struct.pack(f"<{STEPS}d", *norms))
        if images:
            state = {n: torch.tensor(w.astype(np.float64)) for n, w in weights.items()}
            loss, right = model.evaluation(state, batch.reshape(G, B, -1))
            out.write(struct.pack("<dId", float(loss), right, results[0][3]))
    tell_own_distance(model, weights, base, batch, grads)


if __name__ == "__main__":
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(MODELS):
        sys.exit(__doc__)
    for model_name in sys.argv[2:] or MODELS:
        record(MODELS[model_name], Path(sys.argv[1]) / f"reference_{model_name}.bin")
