"""Generates ten steps of torch.optim.Muon for TestMuonMatchesPyTorch.

    python optim/testdata/muon.py > optim/testdata/muon.json      (torch 2.9 or later)

Each case is run twice: as torch has it, in bf16, and with the iteration in float32, of
which no rounding hides anything. Parameters and gradients are numbers that need no file.
"""
import json
import sys

import torch
import torch.optim._muon as muon

torch.set_num_threads(1)

CASES = [
    dict(shape=[6, 10], lr=0.02, weight_decay=0.1, momentum=0.95, nesterov=True, ns_steps=5, adjust_lr_fn="original"),
    dict(shape=[17, 5], lr=0.02, weight_decay=0.0, momentum=0.9, nesterov=False, ns_steps=5, adjust_lr_fn="original"),
    dict(shape=[17, 5], lr=1e-3, weight_decay=0.1, momentum=0.95, nesterov=True, ns_steps=3, adjust_lr_fn="match_rms_adamw"),
    dict(shape=[12, 12], lr=0.05, weight_decay=1.0, momentum=0.95, nesterov=True, ns_steps=6, adjust_lr_fn="original"),
    dict(shape=[4, 20], lr=0.02, weight_decay=0.1, momentum=0.0, nesterov=True, ns_steps=5, adjust_lr_fn="spectral_unclamped"),
]
STEPS = 10


def numbers(n, t):
    return torch.tensor([((i * 7919 + t * 104729 + i * i * 31) % 2003 - 1001) / 256 for i in range(n)], dtype=torch.float32)


def in_float32(grad, coefficients, steps, eps):
    """_zeropower_via_newtonschulz without its conversion to bf16."""
    a, b, c = coefficients
    x = grad.clone()
    if grad.size(0) > grad.size(1):
        x = x.T
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        update = torch.addmm(gram, gram, gram, beta=b, alpha=c)
        x = torch.addmm(x, update, x, beta=a)
    return x.T if grad.size(0) > grad.size(1) else x


def run(case):
    rows, cols = case["shape"]
    w = torch.nn.Parameter(numbers(rows * cols, 0).reshape(rows, cols) / 8)
    options = {k: v for k, v in case.items() if k != "shape"}
    opt = torch.optim.Muon([w], **options)
    for t in range(1, STEPS + 1):
        w.grad = numbers(rows * cols, t).reshape(rows, cols)
        opt.step()
    return w.detach().flatten().tolist(), opt.state[w]["momentum_buffer"].flatten().tolist()


def main():
    out = []
    bf16 = muon._zeropower_via_newtonschulz
    for case in CASES:
        muon._zeropower_via_newtonschulz = bf16
        w, m = run(case)
        muon._zeropower_via_newtonschulz = in_float32
        exact, _ = run(case)
        out.append(dict(case, weight=w, momentum_buffer=m, weight_float32=exact))
    json.dump({"torch": torch.__version__, "steps": STEPS, "cases": out}, sys.stdout)
    print()


main()
