"""Seconds of a training step of a GPT-2 or of transformers' Mixtral in PyTorch on the CPU, for scripts/compare-torch: the
median of the second half of the steps, as JSON. AdamW is fused, blocks are compiled with Inductor, and bf16 is
autocast's or, with fully_shard, its mixed precision; processes use gloo and share the processors.

  python3 torch_speed.py --how eager|compile|ddp|fsdp2 --precision fp32|bf16 --ranks 2 --batch 8 --steps 20
  python3 torch_speed.py --how eager|compile --precision bf16 --experts eager|grouped_mm|batched_mm
"""

import argparse
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "gpu"))
from torch_model import GPT2  # noqa: E402

LAYERS, HEADS, WIDTH, CONTEXT, VOCAB = 8, 8, 512, 256, 256


class Mixture(torch.nn.Module):
    """A Mixtral of 97M parameters, 16 experts and 2 for each token, whose experts are computed by an implementation."""

    def __init__(self, experts):
        super().__init__()
        from transformers import MixtralConfig, MixtralForCausalLM

        self.model = MixtralForCausalLM(MixtralConfig(
            num_hidden_layers=LAYERS, num_attention_heads=HEADS, num_key_value_heads=HEADS, hidden_size=WIDTH, intermediate_size=448, num_local_experts=16,
            num_experts_per_tok=2, vocab_size=VOCAB, max_position_embeddings=CONTEXT, sliding_window=None, use_cache=False, attn_implementation="sdpa"))
        self.model.set_experts_implementation(experts)

    def forward(self, ids, target):
        logits = self.model(input_ids=ids).logits
        return torch.nn.functional.cross_entropy(logits.view(-1, VOCAB).float(), target.reshape(-1))


def work(rank, a, store, out):
    torch.set_num_threads(a.threads or max(1, os.cpu_count() // a.ranks))
    torch.manual_seed(1)
    if a.ranks > 1 or a.how in ("ddp", "fsdp2"):
        dist.init_process_group("gloo", store=dist.FileStore(store, a.ranks), rank=rank, world_size=a.ranks)
    model = Mixture(a.experts) if a.experts else GPT2(LAYERS, HEADS, WIDTH, CONTEXT, VOCAB)
    cast = torch.autocast("cpu", torch.bfloat16, enabled=a.precision == "bf16" and a.how != "fsdp2")
    if a.how == "fsdp2":
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if a.precision == "bf16" else MixedPrecisionPolicy()
        mesh = dist.init_device_mesh("cpu", (a.ranks,))
        for block in model.h:
            block.compile()
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh, mp_policy=policy)
    elif a.how == "ddp":
        model = torch.compile(torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True))
    elif a.how == "compile":
        model = torch.compile(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    seconds, processor = [], []
    for n in range(a.steps):
        ids = torch.randint(VOCAB, (a.batch // a.ranks, CONTEXT + 1), generator=torch.Generator().manual_seed(n * a.ranks + rank))
        begin, used = time.perf_counter(), time.process_time()
        with cast:
            loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
        processor.append(time.process_time() - used)
    last, used = (sorted(x[a.steps // 2 :]) for x in (seconds, processor))
    if rank == 0:
        with open(out, "w") as f:
            json.dump({"torch": torch.__version__, "seconds": last[len(last) // 2], "processor": used[len(used) // 2], "loss": float(loss)}, f)
    if dist.is_initialized():
        dist.destroy_process_group()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--how", choices=["eager", "compile", "ddp", "fsdp2"], required=True)
    args.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    args.add_argument("--ranks", type=int, default=1)
    args.add_argument("--batch", type=int, default=8)
    args.add_argument("--steps", type=int, default=20)
    args.add_argument("--threads", type=int, help="of a process; by default the processors divided by the processes")
    args.add_argument("--experts", choices=["eager", "grouped_mm", "batched_mm"], help="train a mixture of experts")
    a = args.parse_args()
    with tempfile.TemporaryDirectory() as d:
        store, out = os.path.join(d, "store"), os.path.join(d, "out")
        if a.ranks > 1:
            mp.spawn(work, (a, store, out), nprocs=a.ranks)
        else:
            work(0, a, store, out)
        with open(out) as f:
            print(f.read())


if __name__ == "__main__":
    main()
