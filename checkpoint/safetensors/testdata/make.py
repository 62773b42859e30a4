"""Makes the fixtures of this folder with the reference implementation
(pip install safetensors==0.5.3 numpy). The tests do not run it.

With a path as argument it instead checks that the reference implementation
reads a file that our writer wrote, and prints names, dtypes and shapes.
"""
import json, struct, sys, pathlib
import numpy as np
import safetensors
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent


def tensor(dtype, shape, raw):
    return {"dtype": dtype, "shape": shape, "data": raw}


def make():
    f32 = np.array([[0, -0.0, 1.5], [np.inf, 3.4e38, 1e-40]], np.float32)
    f16 = np.array([0, -0.0, 1, 65504, 6e-8, 6.1e-5, np.inf], np.float16)
    bf16 = struct.pack("<4H", 0x3F80, 0xC000, 0x7F80, 0x0001)  # 1, -2, inf, smallest
    (here / "mixed.safetensors").write_bytes(safetensors.serialize({
        "f32": tensor("float32", [2, 3], f32.tobytes()),
        "f16": tensor("float16", [7], f16.tobytes()),
        "bf16": tensor("bfloat16", [2, 2], bf16),
        "scalar": tensor("int64", [], struct.pack("<q", -7)),
        "empty": tensor("float32", [0, 3], b""),
        "mask": tensor("bool", [3], b"\1\0\1"),
    }, {"format": "pt", "note": "made by make.py"}))
    (here / "only-metadata.safetensors").write_bytes(safetensors.serialize({}, {"format": "pt"}))
    parts = {"model-00001-of-00002.safetensors": {"a.weight": np.arange(12, dtype=np.float32).reshape(3, 4)},
             "model-00002-of-00002.safetensors": {"b.bias": np.arange(5, dtype=np.float16), "b.weight": np.ones((2, 2), np.float32)}}
    for name, ts in parts.items():
        save_file(ts, here / "sharded" / name, {"format": "pt"})
    index = {"metadata": {"total_size": 48 + 10 + 16},
             "weight_map": {t: name for name, ts in parts.items() for t in ts}}
    (here / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def check(path):
    data = open(path, "rb").read()
    for name, t in safetensors.deserialize(data):
        print(name, t["dtype"], t["shape"], len(t["data"]))


if __name__ == "__main__":
    check(sys.argv[1]) if len(sys.argv) > 1 else make()
