"""Seconds of a training step of a GPT-2 in PyTorch on the CPU, for scripts/compare-torch: the median of
the second half of the steps, as JSON. AdamW is fused, blocks are compiled with Inductor, and bf16 is
autocast's or, with fully_shard, its mixed precision; processes use gloo and share the processors.

  python3 torch_speed.py --how eager|compile|ddp|fsdp2 --precision fp32|bf16 --ranks 2 --batch 8 --steps 20
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


def work(rank, a, store, out):
    torch.set_num_threads(max(1, os.cpu_count() // a.ranks))
    torch.manual_seed(1)
    if a.ranks > 1 or a.how in ("ddp", "fsdp2"):
        dist.init_process_group("gloo", store=dist.FileStore(store, a.ranks), rank=rank, world_size=a.ranks)
    model = GPT2(LAYERS, HEADS, WIDTH, CONTEXT, VOCAB)
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
    seconds = []
    for n in range(a.steps):
        ids = torch.randint(VOCAB, (a.batch // a.ranks, CONTEXT + 1), generator=torch.Generator().manual_seed(n * a.ranks + rank))
        begin = time.perf_counter()
        with cast:
            loss = model(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds.append(time.perf_counter() - begin)
    last = sorted(seconds[a.steps // 2 :])
    if rank == 0:
        with open(out, "w") as f:
            json.dump({"torch": torch.__version__, "seconds": last[len(last) // 2], "loss": float(loss)}, f)
    if dist.is_initialized():
        dist.destroy_process_group()


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--how", choices=["eager", "compile", "ddp", "fsdp2"], required=True)
    args.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    args.add_argument("--ranks", type=int, default=1)
    args.add_argument("--batch", type=int, default=8)
    args.add_argument("--steps", type=int, default=20)
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
