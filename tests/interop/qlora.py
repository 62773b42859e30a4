"""Weights in 4 bits beside bitsandbytes.

    pip install torch transformers==5.23.0 peft bitsandbytes
    python tests/interop/qlora.py codes > device/testdata/nf4.json

writes what bitsandbytes makes of some matrices, for the tests of package device.
"""

import base64
import json
import sys
import zlib

import bitsandbytes.functional as bnb
import numpy as np
import torch

torch.set_num_threads(1)  # the mean of magnitudes depends on it


def numbers(n, seed):
    """n float32 numbers near a normal distribution, which any language computes alike"""
    h = np.arange(n, dtype=np.uint32) * np.uint32(2654435761) + np.uint32(seed)
    x = np.zeros(n, dtype=np.int64)
    for _ in range(4):
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x7FEB352D)
        h ^= h >> np.uint32(15)
        h *= np.uint32(0x846CA68B)
        h ^= h >> np.uint32(16)
        x += (h >> np.uint32(16)).astype(np.int64) - 32768
    return (x / 2**21).astype(np.float32)


def matrices():
    yield "three groups", numbers(3 * 16384, 1).reshape(192, 256)
    yield "incomplete blocks", numbers(311 * 58, 2).reshape(311, 58)
    few = numbers(4 * 64, 3)
    few[0:64] = 0
    few[64:128] *= 1e-37
    few[130] = 1e6
    yield "zeros, tiny numbers and one large", few.reshape(4, 64)
    yield "one block", numbers(12, 4).reshape(3, 4)
    limits = bnb.get_4bit_type("nf4", device="cpu")
    limits = ((limits[1:] + limits[:-1]) / 2).numpy()
    near = [np.nextafter(limits, np.float32(side)) for side in (-2, 2)]
    edge = np.concatenate([[1], limits, near[0], near[1], np.zeros(18)]).astype(np.float32)
    yield "limits between codes", np.concatenate([edge, edge * np.float32(0.7)]).reshape(2, 64)


def text(a):
    return base64.b64encode(np.ascontiguousarray(a).tobytes()).decode()


def codes():
    out = {"magnitudes": text(bnb.create_dynamic_map().numpy()), "matrices": []}
    for name, x in matrices():
        q, s = bnb.quantize_4bit(torch.from_numpy(x), quant_type="nf4", compress_statistics=True)
        m = {
            "name": name, "shape": x.shape, "codes": text(q.numpy()), "magnitudes": text(s.absmax.numpy()),
            "largest": text(s.state2.absmax.numpy()), "mean": text(s.offset.numpy()),
        }
        if x.size < 1000:
            m["input"] = text(x)
        for t in (torch.float32, torch.bfloat16, torch.float16):
            s.dtype = t
            y = bnb.dequantize_4bit(q, s)
            m[str(t)[6:]] = zlib.crc32(y.contiguous().view(torch.uint8).numpy().tobytes())
        out["matrices"].append(m)
    json.dump(out, sys.stdout, indent=1)
    print()


if sys.argv[1:] == ["codes"]:
    codes()
else:
    sys.exit(__doc__)
