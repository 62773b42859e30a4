"""Makes what tests/hf_test.go compares with: models saved by transformers, and
what PyTorch computes with them.

    pip install torch==2.8.0 transformers==5.23.0 safetensors numpy
    python make.py

    tiny/        GPT2LMHeadModel, 2 layers, as save_pretrained writes it, float32
    bare/        GPT2Model, 1 layer: names without "transformer.", bfloat16, and
                 the masks that the published GPT-2 folders have among the parameters
    parts/       the same parameters as bare, in several files with an index
    tokens.bin   uint16 ids, 12 windows of tiny's context
    bare.bin     the same for bare's context and vocabulary
    expect.json  what PyTorch computes, in float64, and how far its own float32
                 is from that

    python make.py FOLDER    prints the loss PyTorch computes on tokens.bin with a
                             folder that this project wrote
"""

import json
import os
import shutil
import sys

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Model

WINDOWS = 12
STEPS, LR, BETAS, EPS, DECAY, CLIP = 10, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def config(vocab, context, width, layers, heads):
    return GPT2Config(
        vocab_size=vocab, n_positions=context, n_embd=width, n_layer=layers, n_head=heads,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def randomise(model):
    """Larger than a real model's start, with no parameter at zero, so that a
    small model has gradients everywhere and no term is hidden."""
    for name, p in model.named_parameters():
        mean = 1.0 if "ln_" in name and name.endswith("weight") else 0.0
        torch.nn.init.normal_(p, mean, 0.15)


def tokens(file, vocab, context):
    """Random ids in consecutive windows that overlap in one token."""
    ids = np.random.randint(0, vocab, WINDOWS * context + 1).astype("<u2")
    ids.tofile(file)
    return windows(ids, context)


def windows(ids, context):
    rows = np.stack([ids[i * context : (i + 1) * context + 1] for i in range(WINDOWS)]).astype(np.int64)
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def loss_of(model, batch):
    logits = model(batch[0]).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


def some(tensor):
    """Five elements, of the flattened tensor, from its start to its end."""
    flat = tensor.detach().flatten()
    return {str(i): flat[i].item() for i in sorted({len(flat) * k // 23 for k in (0, 5, 15, 17, 22)})}


def visible(name, tensor):
    """The tensor without the biases of keys. Their gradient is zero, because
    softmax does not see what all keys have in common; in float32 it is rounding
    of which Adam makes steps."""
    if not name.endswith("attn.c_attn.bias"):
        return tensor
    n = len(tensor) // 3
    return torch.cat([tensor[:n], tensor[2 * n :]])


def parameters(model):
    """Tied parameters once; the names of model.safetensors."""
    return dict(model.named_parameters())


def first_step(model, batch):
    logits, loss = loss_of(model, batch)
    loss.backward()
    grads = {n: {"norm": p.grad.norm().item(), "at": some(p.grad)} for n, p in parameters(model).items()}
    rows = {f"{w},{t}": logits[w, t].tolist() for w, t in ((0, 0), (5, 17), (11, 31))}
    return loss.item(), rows, grads


def train(model, batch):
    ps = parameters(model).values()
    rule = torch.optim.AdamW(
        [{"params": [p for p in ps if p.dim() >= 2], "weight_decay": DECAY},
         {"params": [p for p in ps if p.dim() < 2], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=EPS)
    losses, norms = [], []
    for _ in range(STEPS):
        rule.zero_grad()
        _, loss = loss_of(model, batch)
        loss.backward()
        norms.append(torch.nn.utils.clip_grad_norm_(ps, CLIP).item())
        losses.append(loss.item())
        rule.step()
    return losses, norms


def load(folder, dtype):
    return GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").to(dtype).eval()


def trajectory(folder, batch, dtype):
    model = load(folder, dtype)
    start = {n: p.detach().clone() for n, p in parameters(model).items()}
    losses, norms = train(model, batch)
    moved = {n: {"norm": visible(n, p - start[n]).norm().item(), "at": some(p)} for n, p in parameters(model).items()}
    return {"losses": losses, "norms": norms, "params": moved}, parameters(model)


def apart(a, b):
    """The largest difference of lists, as a part of the value."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def make_tiny():
    model = GPT2LMHeadModel(config(97, 32, 48, 2, 3))
    randomise(model)
    model.save_pretrained("tiny")
    batch = tokens("tokens.bin", 97, 32)
    loss, rows, grads = first_step(load("tiny", torch.float64), batch)
    exact, end = trajectory("tiny", batch, torch.float64)
    rounded, end32 = trajectory("tiny", batch, torch.float32)
    return {
        "loss": loss, "logits": rows, "gradients": grads, "adamw": exact,
        "pytorch_float32": {
            "losses": apart(rounded["losses"], exact["losses"]), "norms": apart(rounded["norms"], exact["norms"]),
            "params": max(visible(n, end32[n].double() - end[n]).abs().max().item() for n in end),
        },
    }


def make_bare():
    model = GPT2Model(config(17, 8, 8, 1, 2))
    randomise(model)
    model.to(torch.bfloat16).save_pretrained("bare")
    state = load_file("bare/model.safetensors")
    state["h.0.attn.bias"] = torch.tril(torch.ones(1, 1, 8, 8)).to(torch.uint8)
    state["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    save_file(state, "bare/model.safetensors", {"format": "pt"})
    whole = load("bare", torch.float32)
    whole.save_pretrained("parts", max_shard_size="2KB")
    batch = tokens("bare.bin", 17, 8)
    return loss_of(whole.double(), batch)[1].item()


def main():
    if len(sys.argv) > 1:
        batch = windows(np.fromfile("tokens.bin", "<u2"), 32)
        print(loss_of(load(sys.argv[1], torch.float64), batch)[1].item())
        return
    torch.manual_seed(1)
    np.random.seed(1)
    for folder in ("tiny", "bare", "parts"):
        shutil.rmtree(folder, ignore_errors=True)
    expect = {"tiny": make_tiny(), "bare": make_bare()}
    for folder in ("tiny", "parts"):
        os.remove(f"{folder}/generation_config.json")
    with open("expect.json", "w") as f:
        json.dump(expect, f, indent=1)
        f.write("\n")


main()
