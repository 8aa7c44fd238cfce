#!/usr/bin/env python3
"""Adapters that dpt exported, in PEFT's hands.

    python3 peer_peft.py BASE ADAPTERS MERGED TEXT      (needs torch, transformers and peft)

Opens ADAPTERS with PeftModel.from_pretrained over the model of BASE, and MERGED with from_pretrained. Prints, as one
line of JSON, {"tensors": n of the adapters, "trainable": how many numbers they have, "logits": the largest difference
of logits on the text's bytes between both, "merged": the largest difference of a weight between MERGED and what PEFT
merges, "loss": the mean loss of the adapters' model on the text's sequences of 32}.
"""

import json
import sys
from pathlib import Path

import peft
import torch
import transformers

SEQ_LEN = 32


def load(folder):
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def compare(base, adapters, merged, text):
    torch.set_num_threads(2)
    model, whole = peft.PeftModel.from_pretrained(load(base), adapters).eval(), load(merged)
    state = peft.get_peft_model_state_dict(model)
    tokens = torch.tensor(list(Path(text).read_bytes()))
    n = (len(tokens) - 1) // SEQ_LEN
    inputs, targets = tokens[:n * SEQ_LEN].view(n, SEQ_LEN), tokens[1:n * SEQ_LEN + 1]
    with torch.no_grad():
        logits = [m(inputs).logits for m in (model, whole)]
        loss = torch.nn.functional.cross_entropy(logits[0].reshape(n * SEQ_LEN, -1), targets)
        theirs = model.merge_and_unload().state_dict()
        ours = whole.state_dict()
        weights = max(float((theirs[name] - ours[name]).abs().max()) for name in ours)
    print(json.dumps({"tensors": len(state), "trainable": sum(t.numel() for t in state.values()), "loss": float(loss),
                      "logits": float((logits[0] - logits[1]).abs().max()), "merged": weights}))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    compare(*sys.argv[1:])
