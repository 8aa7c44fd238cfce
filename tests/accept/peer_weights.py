#!/usr/bin/env python3
"""Hugging Face folders by transformers, for dpt to begin from, and what dpt made of them.

    python3 peer_weights.py make FOLDER SPEC            random weights, saved by save_pretrained
    python3 peer_weights.py compare FOLDER OTHER TEXT   (needs torch, transformers and safetensors)

SPEC is JSON: {"model_type": …, "dtype": "float32", "shard_size": "100KB" or null, "config": {…}}. compare opens both
with from_pretrained and prints, as one line of JSON, {"tensors": n of FOLDER, "same_bytes": how many of them the files
of OTHER have with the same bytes, "logits": the largest difference of logits on the text's bytes, "loss": the mean loss
of FOLDER's model on its 8 sequences of 32}.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file

SEQ_LEN = 32


def make(folder, spec):
    torch.manual_seed(11)
    config = transformers.AutoConfig.for_model(spec["model_type"], **spec["config"])
    model = transformers.AutoModelForCausalLM.from_config(config).to(getattr(torch, spec["dtype"]))
    with torch.no_grad():  # norms and biases, too, are no round numbers
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.02)
    model.save_pretrained(folder, **({"max_shard_size": spec["shard_size"]} if spec["shard_size"] else {}))


def tensors_of(folder):
    found = {}
    for path in Path(folder).glob("*.safetensors"):
        found.update(load_file(path))
    return found


def same_bytes(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.flatten().view(torch.uint8),
                                                                     b.flatten().view(torch.uint8))


def compare(folder, other, text):
    torch.set_num_threads(2)
    mine, theirs = tensors_of(folder), tensors_of(other)
    models = [transformers.AutoModelForCausalLM.from_pretrained(f, dtype=torch.float32).eval() for f in (folder, other)]
    tokens = torch.tensor(list(Path(text).read_bytes()))
    n = (len(tokens) - 1) // SEQ_LEN
    inputs, targets = tokens[:n * SEQ_LEN].view(n, SEQ_LEN), tokens[1:n * SEQ_LEN + 1]
    with torch.no_grad():
        logits = [model(inputs).logits for model in models]
        loss = torch.nn.functional.cross_entropy(logits[0].reshape(n * SEQ_LEN, -1), targets)
    print(json.dumps({"tensors": len(mine), "loss": float(loss),
                      "same_bytes": sum(name in theirs and same_bytes(mine[name], theirs[name]) for name in mine),
                      "logits": float((logits[0] - logits[1]).abs().max())}))


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1] == "make":
        make(sys.argv[2], json.loads(sys.argv[3]))
    elif len(sys.argv) == 5 and sys.argv[1] == "compare":
        compare(*sys.argv[2:])
    else:
        sys.exit(__doc__)
