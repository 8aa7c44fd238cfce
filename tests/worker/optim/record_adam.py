#!/usr/bin/env python3
"""Records the updates of one tensor by PyTorch's Adam, with which update_test.c compares dpt's.

    python3 record_adam.py > adam_cases.inc       (needs torch, any version from 1.13)

One vector, fp32 on the CPU, weight decay by L2, a new gradient each step. All values are printed with so many digits
that their bits can be restored.
"""

import warnings

import torch

N, STEPS = 6, 4
LR, BETAS, EPS, DECAY = 1e-2, (0.9, 0.95), 1e-8, 0.1


def row(values):
    return "{" + ", ".join(f"{float(v):.9g}f" if "." in f"{float(v):.9g}" or "e" in f"{float(v):.9g}"
                           else f"{float(v):.9g}.0f" for v in values) + "}"


def main():
    warnings.simplefilter("ignore")
    torch.manual_seed(1)
    param = torch.nn.Parameter(torch.randn(N))
    optimizer = torch.optim.Adam([param], lr=LR, betas=BETAS, eps=EPS, weight_decay=DECAY)
    print(f"/* Made by record_adam.py with torch {torch.__version__}: lr {LR}, betas {BETAS}, eps {EPS},\n"
          f" * weight_decay {DECAY}. The parameters at first; of each step the gradient and the parameters after. */")
    print(f".first = {row(param.detach())},")
    print(".step = {")
    for _ in range(STEPS):
        param.grad = torch.randn(N)
        optimizer.step()
        print(f"    {{.grad = {row(param.grad)},\n     .param = {row(param.detach())}}},")
    print("},")


if __name__ == "__main__":
    main()
