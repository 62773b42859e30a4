"""All-reduce, reduce-scatter and all-gather of 64 MiB of float32 between two processes by torch's gloo.

Usage: python gloo.py [rounds]. Prints the median of each in GB/s of one direction: what zeroth's
BenchmarkGroup in collective/socket prints (32 MiB go each way in a gather and a reduction, 64 in an all-reduce).
"""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WORLD, FLOATS = 2, 16 << 20


def operations(rank):
    whole = torch.ones(FLOATS)
    part = torch.ones(FLOATS // WORLD)
    return {
        "all-reduce": (2, lambda: dist.all_reduce(whole)),
        "reduce": (1, lambda: dist.reduce_scatter_tensor(part, whole)),
        "gather": (1, lambda: dist.all_gather_into_tensor(whole, part)),
    }


def process(rank, rounds, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=WORLD)
    for name, (times, run) in operations(rank).items():
        took = []
        for i in range(rounds + 1):
            dist.barrier()
            start = time.perf_counter()
            run()
            took.append(time.perf_counter() - start)
        if rank == 0:
            sent = times * 4 * FLOATS / WORLD
            print(f"gloo/{name} {sent / statistics.median(took[1:]) / 1e9:.3f} GB/s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(process, args=(rounds, os.path.join(folder, "store")), nprocs=WORLD)
