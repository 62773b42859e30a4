"""Makes what tests/hf_llama_test.go compares with: models saved by transformers,
and what PyTorch computes with them.

    pip install torch==2.8.0 transformers==5.23.0 safetensors numpy
    python make.py

    llama/       LlamaForCausalLM, 2 layers, two query heads to a key head, an
                 output layer of its own, frequencies scaled as in Llama 3.1
    qwen2/       Qwen2ForCausalLM, 1 layer, tied, with biases
    tokens.bin   uint16 ids, 12 windows of the models' context
    expect.json  what PyTorch computes, in float64, and how far its own float32
                 is from that
    pad.json     the same where config.json also has pad_token_id, made of the
                 folders that are there with: python make.py pad

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
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

WINDOWS, CONTEXT, VOCAB = 12, 32, 97
PAD = 77
STEPS, LR, BETAS, EPS, DECAY, CLIP = 10, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0


def llama():
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, rms_norm_eps=1e-5, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0,
                         "high_freq_factor": 2.0, "original_max_position_embeddings": 20}))


def qwen2():
    return Qwen2ForCausalLM(Qwen2Config(
        vocab_size=VOCAB, max_position_embeddings=CONTEXT, hidden_size=40, intermediate_size=72, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=1, rms_norm_eps=1e-6, tie_word_embeddings=True,
        bos_token_id=None, eos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 1000.0}))


def randomise(model):
    """Larger than a real model's start, with no parameter at zero, so that a
    small model has gradients everywhere and no term is hidden."""
    for name, p in model.named_parameters():
        torch.nn.init.normal_(p, 1.0 if "norm" in name else 0.0, 0.15)


def tokens():
    """Random ids in consecutive windows that overlap in one token."""
    ids = np.random.randint(0, VOCAB, WINDOWS * CONTEXT + 1).astype("<u2")
    ids.tofile("tokens.bin")
    return windows(ids)


def windows(ids):
    rows = np.stack([ids[i * CONTEXT : (i + 1) * CONTEXT + 1] for i in range(WINDOWS)]).astype(np.int64)
    return torch.from_numpy(rows[:, :-1].copy()), torch.from_numpy(rows[:, 1:].copy())


def loss_of(model, batch):
    logits = model(batch[0]).logits
    return logits, F.cross_entropy(logits.flatten(0, 1), batch[1].flatten())


def some(tensor):
    """Five elements, of the flattened tensor, from its start to its end."""
    flat = tensor.detach().flatten()
    return {str(i): flat[i].item() for i in sorted({len(flat) * k // 23 for k in (0, 5, 15, 17, 22)})}


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


def exact_positions(model):
    """transformers computes the rotary positions and the variance of the norms
    in float32 whatever the model's type. In float64 both take it."""
    import transformers.models.llama.modeling_llama as l
    import transformers.models.qwen2.modeling_qwen2 as q

    for norm in (l.LlamaRMSNorm, q.Qwen2RMSNorm):
        norm.forward = lambda s, x: s.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + s.variance_epsilon))
    rotary = model.model.rotary_emb
    config = model.config.rope_parameters
    half = torch.arange(0, model.config.hidden_size // model.config.num_attention_heads, 2, dtype=torch.float64)
    freq = config["rope_theta"] ** -(half / (2 * len(half)))
    if config["rope_type"] == "llama3":
        old, low, high, factor = (config[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "factor"))
        wave = 2 * np.pi / freq
        smooth = (old / wave - low) / (high - low)
        between = (1 - smooth) * freq / factor + smooth * freq
        freq = torch.where(wave < old / high, freq, torch.where(wave > old / low, freq / factor, between))
    assert (freq - rotary.inv_freq.double()).abs().max() < 1e-7, "frequencies are not transformers'"

    def forward(x, position_ids):
        angle = position_ids[..., None].double() * freq
        angle = torch.cat((angle, angle), dim=-1)
        return angle.cos().to(x.dtype), angle.sin().to(x.dtype)

    rotary.forward = forward


def load(folder, dtype, **config):
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager", **config).to(dtype).eval()
    if dtype == torch.float64:
        exact_positions(model)
    return model


def trajectory(folder, batch, dtype, **config):
    model = load(folder, dtype, **config)
    start = {n: p.detach().clone() for n, p in parameters(model).items()}
    losses, norms = train(model, batch)
    moved = {n: {"norm": (p - start[n]).norm().item(), "at": some(p)} for n, p in parameters(model).items()}
    return {"losses": losses, "norms": norms, "params": moved}, parameters(model)


def apart(a, b):
    """The largest difference of lists, as a part of the value."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b))


def make(folder, model, batch):
    shutil.rmtree(folder, ignore_errors=True)
    randomise(model)
    model.save_pretrained(folder)
    os.remove(f"{folder}/generation_config.json")
    return computed(folder, batch)


def computed(folder, batch, **config):
    rounded, end32 = trajectory(folder, batch, torch.float32, **config)
    loss, rows, grads = first_step(load(folder, torch.float64, **config), batch)
    exact, end = trajectory(folder, batch, torch.float64, **config)
    return {
        "loss": loss, "logits": rows, "gradients": grads, "adamw": exact,
        "pytorch_float32": {
            "losses": apart(rounded["losses"], exact["losses"]), "norms": apart(rounded["norms"], exact["norms"]),
            "params": max((end32[n].double() - end[n]).abs().max().item() for n in end),
        },
    }


def make_pad(folder, batch):
    """The embedding's gradient in full: at PAD it is the head's, or zero."""
    assert (batch[0] == PAD).sum() > 1, "no padding among the inputs"
    e = computed(folder, batch, pad_token_id=PAD)
    model = load(folder, torch.float64, pad_token_id=PAD)
    loss_of(model, batch)[1].backward()
    e["padding"] = model.model.embed_tokens.weight.grad[PAD].tolist()
    return e


def main():
    if sys.argv[1:] == ["pad"]:
        batch = windows(np.fromfile("tokens.bin", "<u2"))
        with open("pad.json", "w") as f:
            json.dump({"token": PAD, "models": {n: make_pad(n, batch) for n in ("llama", "qwen2")}}, f, indent=1)
            f.write("\n")
        return
    if len(sys.argv) > 1:
        print(loss_of(load(sys.argv[1], torch.float64), windows(np.fromfile("tokens.bin", "<u2")))[1].item())
        return
    torch.manual_seed(1)
    np.random.seed(1)
    batch = tokens()
    expect = {"llama": make("llama", llama(), batch), "qwen2": make("qwen2", qwen2(), batch)}
    with open("expect.json", "w") as f:
        json.dump(expect, f, indent=1)
        f.write("\n")


main()
