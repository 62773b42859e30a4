#!/usr/bin/env python3
"""Reads one tensor of a zeroth checkpoint with nothing but the standard library.

    read_tensor.py CHECKPOINT NAME [KIND] [--raw FILE]

CHECKPOINT is a step's folder, KIND is "master" unless given. Prints dtype,
shape, the SHA-256 of the tensor's bytes and its first values; --raw writes the
bytes to a file. Every digest and checksum on the way is verified. The format
is described at the top of checkpoint/doc.go, section by section as here.
"""
import argparse, hashlib, json, pathlib, struct, sys

BLOCK = 262144  # raw bytes under one checksum
SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2,
         "I16": 2, "U16": 2, "U8": 1, "I8": 1, "BOOL": 1}

CRC_TABLE = []
for i in range(256):
    for _ in range(8):
        i = i >> 1 ^ (0x82F63B78 if i & 1 else 0)
    CRC_TABLE.append(i)


def crc32c(data):
    c = 0xFFFFFFFF
    for x in data:
        c = CRC_TABLE[(c ^ x) & 255] ^ c >> 8
    return c ^ 0xFFFFFFFF


def vouched(path, sha256):
    b = path.read_bytes()
    if hashlib.sha256(b).hexdigest() != sha256:
        sys.exit(f"{path}: SHA-256 is not {sha256}")
    return json.loads(b)


def read_tensor(folder, name, kind):
    """dtype, shape and bytes of a tensor."""
    commit = (folder / "COMMIT").read_text().split(" ")
    if commit[:2] != ["zeroth-checkpoint", "1"]:
        sys.exit(f"{folder}: not a checkpoint of format 1")
    manifest = vouched(folder / "MANIFEST.json", commit[9].strip())
    found = [t for t in manifest["tensors"] if (t["name"], t["kind"]) == (name, kind)]
    if not found and "base" in manifest:
        return read_tensor(folder / ".." / manifest["base"], name, kind)
    if not found:
        sys.exit(f"{folder}: no {name} ({kind})")
    dtype, shape = found[0]["dtype"], found[0]["shape"]
    size, n = SIZES[dtype], 1
    for d in shape:
        n *= d
    out = bytearray(n * size)
    digests = {f["name"]: f.get("sha256") for f in manifest["files"]}
    for writer in range(manifest["writers"]):
        part_name = f"part-{writer:05d}.json"
        part = vouched(folder / part_name, digests[part_name])
        for file in part["files"]:
            for e in file["extents"]:
                t = part["tensors"][e["tensor"]]
                if (t["name"], t["kind"]) == (name, kind):
                    out[e["lo"] * size:e["hi"] * size] = read_extent(folder / file["name"], e, size, dtype)
    return dtype, shape, bytes(out)


def read_extent(path, e, size, dtype):
    raw, out = (e["hi"] - e["lo"]) * size, b""
    with open(path, "rb") as f:
        f.seek(e["offset"])
        for i, lo in enumerate(range(0, raw, BLOCK)):
            n = min(BLOCK, raw - lo)
            b = f.read(n if e["codec"] == "raw" else e["stored"][i])
            if f"{crc32c(b):08x}" != e["crc32c"][8 * i:8 * i + 8]:
                sys.exit(f"{path}: block {i} at offset {e['offset']} is damaged")
            out += b if e["codec"] == "raw" else decode_block(b, n, size, dtype[0] == "F" or dtype == "BF16")
    return out


# The codec planes.

def decode_block(b, n, size, rotated):
    if b[0] == 0:
        return b[1:]
    planes, at, count = [], 1, n // size
    for _ in range(size):
        plane = b""
        while len(plane) < count:
            want = min(131072, count - len(plane))
            kind, length = b[at], int.from_bytes(b[at + 1:at + 4], "little")
            plane += decode_piece(kind, b[at + 4:at + 4 + length], want)
            at += 4 + length
        planes.append(plane)
    out = bytearray(n)
    for p in range(size):
        out[p::size] = planes[p]
    if not rotated:
        return bytes(out)
    form = "<%d%s" % (count, {2: "H", 4: "I", 8: "Q"}[size])
    top = 8 * size - 1
    return struct.pack(form, *(u >> 1 | (u & 1) << top for u in struct.unpack(form, out)))


def decode_piece(kind, b, want):
    if kind == 0:
        return b
    if kind == 1:
        return b * want
    if kind == 2:
        return huffman(b, want)
    try:
        from compression import zstd  # Python 3.14
    except ImportError:
        sys.exit("a piece is in zstd, which needs Python 3.14; or have the job save with checkpoint.compress: never")
    return zstd.decompress(b)


class Backward:
    """Bits of a stream from its end; past its start there are zeros."""

    def __init__(self, b):
        self.v = int.from_bytes(b, "little")
        self.left = self.v.bit_length() - 1  # without the end mark

    def peek(self, n):
        s = self.left - n
        return (self.v >> s if s >= 0 else self.v << -s) & (1 << n) - 1

    def read(self, n):
        x = self.peek(n)
        self.left -= n
        return x


def huffman(b, want):
    weights, at = tree(b)
    total = sum(1 << w - 1 for w in weights if w)
    width = total.bit_length()
    weights.append(((1 << width) - total).bit_length())  # of the last symbol
    table = []
    for w in range(1, width + 1):
        for symbol, x in enumerate(weights):
            if x == w:
                table += [(symbol, width + 1 - w)] * (1 << w - 1)
    jump = struct.unpack_from("<3H", b, at)
    at += 6
    out = bytearray()
    for i in range(4):
        end = at + jump[i] if i < 3 else len(b)
        s = Backward(b[at:end])
        for _ in range((want + 3) // 4 if i < 3 else want - 3 * ((want + 3) // 4)):
            symbol, bits = table[s.peek(width)]
            s.left -= bits
            out.append(symbol)
        at = end
    return bytes(out)


def tree(b):
    """Weights of the symbols but the last, and how many bytes they take."""
    if b[0] >= 128:
        n = b[0] - 127
        return [b[1 + i // 2] >> (4 if i % 2 == 0 else 0) & 15 for i in range(n)], 1 + (n + 1) // 2
    log, probs, used = probabilities(b[1:1 + b[0]])
    table = fse(log, probs)
    s = Backward(b[1 + used:1 + b[0]])
    states, out, turn = [s.read(log), s.read(log)], [], 0
    while True:
        symbol, bits, base = table[states[turn]]
        out.append(symbol)
        states[turn] = base + s.read(bits)
        if s.left < 0:
            return out + [table[states[1 - turn]][0]], 1 + b[0]
        turn = 1 - turn


def probabilities(b):
    """An FSE table description: accuracy, probabilities, bytes used."""
    v, at = int.from_bytes(b, "little"), 4
    log = (v & 15) + 5
    left, probs = 1 << log, []
    while left > 0:
        bits = (left + 1).bit_length()
        x, low = v >> at & (1 << bits) - 1, (1 << bits - 1) - 1
        limit = (1 << bits) - 1 - (left + 1)
        at += bits
        if x & low < limit:
            x &= low
            at -= 1
        elif x > low:
            x -= limit
        probs.append(x - 1)
        left -= abs(x - 1)
        while x == 1:  # zero: two bits say how many more
            more = v >> at & 3
            at += 2
            probs += [0] * more
            if more < 3:
                break
    return log, probs, (at + 7) // 8


def fse(log, probs):
    """The decoding table: symbol, bits to read, base of the next state."""
    size = 1 << log
    cells, high = [None] * size, size
    for symbol, p in enumerate(probs):
        if p == -1:
            high -= 1
            cells[high] = symbol
    at = 0
    for symbol, p in enumerate(probs):
        for _ in range(max(p, 0)):
            cells[at] = symbol
            at = at + (size >> 1) + (size >> 3) + 3 & size - 1
            while at >= high:
                at = at + (size >> 1) + (size >> 3) + 3 & size - 1
    seen, table = [max(p, 1) for p in probs], []
    for symbol in cells:
        x = seen[symbol]
        seen[symbol] += 1
        bits = log + 1 - x.bit_length()
        table.append((symbol, bits, (x << bits) - size))
    return table


def main():
    a = argparse.ArgumentParser()
    a.add_argument("checkpoint", type=pathlib.Path)
    a.add_argument("name")
    a.add_argument("kind", nargs="?", default="master")
    a.add_argument("--raw")
    a = a.parse_args()
    dtype, shape, raw = read_tensor(a.checkpoint, a.name, a.kind)
    print(dtype, shape, hashlib.sha256(raw).hexdigest())
    if dtype == "F32":
        print(*struct.unpack_from("<%df" % min(8, len(raw) // 4), raw))
    if a.raw:
        pathlib.Path(a.raw).write_bytes(raw)


if __name__ == "__main__":
    main()
