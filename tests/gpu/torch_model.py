"""GPT-2 or Llama in PyTorch as zeroth trains it, for the table of tests/gpu: one process, one
GPU, AdamW with float32 parameters, bf16 in products. Llama is transformers'. The last line is
JSON: seconds and tokens of a step, the loss, the most memory that was allocated, and the kind of
attention. --padded computes 50,304 logits, as zeroth does.

  python3 torch_model.py --model gpt2|llama --how plain|compiled|fully_shard --batch 64 [--padded] [--attention cudnn|flash]
"""

import argparse
import json
import math
import os
import tempfile
import time

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (y.view(B, T, self.heads, C // self.heads).transpose(1, 2) for y in self.attn(self.ln_1(x)).split(C, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        x = x + self.proj(y)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, layers, heads, width, context, vocab):
        super().__init__()
        self.context = context
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for name, p in self.named_parameters():
            if p.dim() == 2:
                scale = 0.02 / math.sqrt(2 * layers) if name.endswith(("proj.weight", "out.weight")) else 0.02
                nn.init.normal_(p, std=scale)
            elif name.endswith("bias"):
                nn.init.zeros_(p)

    def forward(self, ids, target):
        x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), target.reshape(-1))


class Llama(nn.Module):
    """The model of llama.yaml."""

    def __init__(self, small):
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        layers, heads, kv, width, ffn, T, vocab = (2, 2, 1, 32, 64, 16, 256) if small else (16, 32, 8, 2048, 8192, 2048, 32000)
        c = LlamaConfig(vocab_size=vocab, hidden_size=width, intermediate_size=ffn, num_hidden_layers=layers, num_attention_heads=heads, num_key_value_heads=kv,
                        max_position_embeddings=T, rope_theta=500000.0, tie_word_embeddings=False, use_cache=False, attn_implementation="sdpa")
        self.m, self.context = LlamaForCausalLM(c), T
        self.h = self.m.model.layers

    def forward(self, ids, target):
        logits = self.m(input_ids=ids).logits
        return F.cross_entropy(logits.view(-1, logits.shape[-1]).float(), target.reshape(-1))


def shard(model, device):
    """fully_shard of a world of one process, as with several: bf16 parameters are
    gathered, gradients are reduced in float32."""
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:  # before PyTorch 2.6
        from torch.distributed._composable.fsdp import MixedPrecisionPolicy, fully_shard
    store = torch.distributed.FileStore(os.path.join(tempfile.mkdtemp(), "store"), 1)
    torch.distributed.init_process_group("nccl" if device == "cuda" else "gloo", store=store, rank=0, world_size=1)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for block in model.h:
        fully_shard(block, mp_policy=policy)
    fully_shard(model, mp_policy=policy)


def attention(a, device):
    """The kind that PyTorch chooses for the model's shapes; it has only a private function for that."""
    heads, T = (12, 1024) if a.model == "gpt2" else (32, 2048)
    try:
        q = torch.zeros(1, heads, T, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
        return str(torch.nn.attention.SDPBackend(torch._fused_sdp_choice(q, q, q, None, 0.0, True)))
    except Exception as e:
        return f"unknown: {e}"


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--model", choices=["gpt2", "llama"], required=True)
    args.add_argument("--how", choices=["plain", "compiled", "fully_shard"], required=True)
    args.add_argument("--batch", type=int, default=64)
    args.add_argument("--steps", type=int, default=20)
    args.add_argument("--small", action="store_true")
    args.add_argument("--padded", action="store_true")
    args.add_argument("--attention", choices=["cudnn", "flash"])
    a = args.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    if a.attention and device == "cuda":
        torch.backends.cuda.enable_flash_sdp(a.attention == "flash")
        torch.backends.cuda.enable_cudnn_sdp(a.attention == "cudnn")
        torch.backends.cuda.enable_mem_efficient_sdp(False)
    if a.model == "gpt2":
        model = GPT2(*((2, 2, 32, 16, 256) if a.small else (12, 12, 768, 1024, 50304 if a.padded else 50257))).to(device)
    else:
        model = Llama(a.small).to(device)
    T = model.context
    cast = torch.autocast(device, torch.bfloat16, enabled=a.how != "fully_shard")
    if a.how == "fully_shard":
        shard(model, device)
    step_of = torch.compile(model) if a.how == "compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=device == "cuda" or None)
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "text.txt"), "rb") as f:
        text = torch.frombuffer(bytearray(f.read()), dtype=torch.uint8)

    def batch(n):
        at = torch.randint(len(text) - T - 1, (a.batch,), generator=torch.Generator().manual_seed(n)).tolist()
        rows = torch.stack([text[i : i + T + 1] for i in at]).long().to(device)
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()

    def wait():
        if device == "cuda":
            torch.cuda.synchronize()

    seconds, loss = [], None
    for n in range(a.steps):
        ids, target = batch(n)
        wait()
        begin = time.perf_counter()
        with cast:
            loss = step_of(ids, target)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        wait()
        seconds.append(time.perf_counter() - begin)
    last = sorted(seconds[a.steps // 2 :])
    most = torch.cuda.max_memory_allocated() / 2**30 if device == "cuda" else 0.0
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    print(json.dumps({"seconds": last[len(last) // 2], "tokens": a.batch * T, "loss": loss.item(), "gib": most, "attention": attention(a, device)}))


if __name__ == "__main__":
    main()
