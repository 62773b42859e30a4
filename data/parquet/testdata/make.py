#!/usr/bin/env python3
"""make.py FOLDER: writes the fixtures beside it anew, and expect.json, what the writers
themselves read from them. Needs pyarrow 26.0.1, polars 2.1.0 and duckdb 2.0.0."""
import json
import os
import sys

import duckdb
import polars
import pyarrow as pa
import pyarrow.parquet as pq

os.chdir(sys.argv[1])
N = 60
words = ["", "a", "ab", "abc", "Grüße", "naïve ☃", "x" * 90, "abcd" * 3]


def text(i):
    return words[i % len(words)] + (str(i) if i % 3 else "")


def talk(i):
    return [{"role": ["user", "assistant"][k % 2], "content": None if i % 17 == 5 and k == 0 else text(i + k)} for k in range(i % 4)]


rows = [
    {
        "text": text(i),
        "maybe": None if i % 5 == 2 else text(i * 7),
        "id": i * 1_000_003 - 7,
        "small": i - 30,
        "big": 2**64 - 1 - i,
        "good": i % 3 == 0,
        "score": i / 8 - 2,
        "messages": None if i % 11 == 10 else talk(i),
        "tags": [text(i + k) for k in range(i % 3)],
        "deep": [[j * k for j in range(k)] for k in range(i % 4)],
        "info": None if i % 7 == 3 else {"name": text(i), "at": {"x": i, "y": None if i % 2 else text(i)}},
    }
    for i in range(N)
]
message = pa.struct([("role", pa.string()), ("content", pa.string())])
schema = pa.schema(
    [
        pa.field("text", pa.string(), nullable=False),
        ("maybe", pa.string()),
        ("id", pa.int64()),
        ("small", pa.int16()),
        ("big", pa.uint64()),
        ("good", pa.bool_()),
        ("score", pa.float32()),
        ("messages", pa.list_(message)),
        ("tags", pa.list_(pa.string())),
        ("deep", pa.list_(pa.list_(pa.int32()))),
        ("info", pa.struct([("name", pa.string()), ("at", pa.struct([("x", pa.int32()), ("y", pa.string())]))])),
    ]
)
table = pa.Table.from_pylist(rows, schema=schema)
expect = {}


def write(name, t=table, **how):
    pq.write_table(t, name + ".parquet", **how)
    expect[name] = pq.read_table(name + ".parquet").to_pylist()


write("plain", compression="none", use_dictionary=False, write_statistics=False)
write("snappy", compression="snappy", row_group_size=17, write_page_checksum=True)
write("gzip", compression="gzip", data_page_size=64, write_batch_size=5)
write("zstd", compression="zstd", data_page_version="2.0", data_page_size=64, write_batch_size=5, use_compliant_nested_type=False)
write("v2-snappy", compression="snappy", data_page_version="2.0", use_dictionary=False, write_page_checksum=True)
delta = {"text": "DELTA_BYTE_ARRAY", "maybe": "DELTA_LENGTH_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED", "small": "DELTA_BINARY_PACKED", "good": "RLE"}
write("delta", compression="zstd", use_dictionary=False, column_encoding=delta, data_page_version="2.0")
long = pa.table({"text": [text(i) * (i % 5) for i in range(3000)], "id": pa.array([(i * 7919) % 100_003 * (-1) ** i for i in range(3000)], pa.int64())})
pq.write_table(long, "long.parquet", compression="zstd", use_dictionary=False, column_encoding={"text": "DELTA_BYTE_ARRAY", "id": "DELTA_BINARY_PACKED"})
write("many", pa.table({"text": [["one", "two", "three"][i * i % 3] if i % 4 else None for i in range(500)]}), compression="zstd", data_page_size=16, write_batch_size=10)
write("empty", table.slice(0, 0))

polars.DataFrame(table.select(["text", "maybe", "id", "messages"])).write_parquet("polars.parquet", compression="zstd")
frame = table.select(["text", "maybe", "id", "messages"])
duckdb.sql("copy frame to 'duckdb.parquet' (format parquet, compression snappy, parquet_version v2)")
for name in ["polars", "duckdb"]:
    expect[name] = [{key: row[key] for key in ["text", "maybe", "id", "messages"]} for row in expect["plain"]]
    assert expect[name] == frame.to_pylist()

# what is refused
pq.write_table(table.select(["text"]), "brotli.parquet", compression="brotli")
pq.write_table(pa.table({"text": ["a"], "when": pa.array([0], pa.timestamp("us"))}), "dates.parquet")
maps = pa.array([[("k", "v"), ("é", None)], None, []], pa.map_(pa.string(), pa.string()))
deep = pa.array([[{"m": [("a", [("x", 1)]), ("b", [])]}], [], None], pa.list_(pa.struct([("m", pa.map_(pa.string(), pa.map_(pa.string(), pa.int32())))])))
numbers = pa.array([[(1, "v")], [], []], pa.map_(pa.int32(), pa.string()))
twice = pa.array([[("k", "v"), ("k", "w")], [], []], pa.map_(pa.string(), pa.string()))
pq.write_table(pa.table({"map": maps, "deep": deep, "numbers": numbers, "twice": twice}), "map.parquet")
pq.write_table(pa.table({"text": pa.array([1.5], pa.float64())}), "split.parquet", use_dictionary=False, column_encoding={"text": "BYTE_STREAM_SPLIT"})
with open("expect.json", "w") as f:
    same = {name: "plain" if name != "plain" and all == expect["plain"] else all for name, all in expect.items()}
    json.dump(same, f, ensure_ascii=False, separators=(",", ":"))
