#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""Write the seed corpus of fuzz_gguf: python3 tests/fuzz/gen_corpus_gguf.py tests/fuzz/corpus/gguf"""
import os
import struct
import sys

out = sys.argv[1]
os.makedirs(out, exist_ok=True)


def s(text):
    b = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(b)) + b


FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


def value(t, v):
    return s(v) if t == 8 else struct.pack("<" + FORMATS[t], v)


def kv(key, t, v):
    return s(key) + struct.pack("<I", t) + value(t, v)


def array(key, t, items, count=None):
    n = len(items) if count is None else count
    return s(key) + struct.pack("<IIQ", 9, t, n) + b"".join(value(t, v) for v in items)


def tensor(name, ne, t, offset):
    return s(name) + struct.pack("<I", len(ne)) + struct.pack("<%dQ" % len(ne), *ne) + struct.pack("<IQ", t, offset)


def head(n_tensors, n_kv, version=3):
    return b"GGUF" + struct.pack("<IQQ", version, n_tensors, n_kv)


def pad(b, a=32):
    return b + bytes(-len(b) % a)


def save(name, b):
    with open(os.path.join(out, name + ".gguf"), "wb") as f:
        f.write(b)


# well-formed
scalars = [(0, 200), (1, -3), (2, 65535), (3, -300), (4, 1 << 31), (5, -70000), (6, 0.5), (7, 1), (8, "text"),
           (10, 1 << 60), (11, -(1 << 60)), (12, 2.5)]
save("scalars", head(0, 12) + b"".join(kv("key.%d" % t, t, v) for t, v in scalars))
save("arrays", head(0, 12) + b"".join(array("key.%d" % t, t, [v] * 3) for t, v in scalars))
save("empty", head(0, 0))
save("version2", head(0, 1, 2) + kv("a", 4, 1))
vocab = array("tokenizer.ggml.tokens", 8, ["<s>", "</s>", "a", "b", "ab", b"\xe2\x96\x81", ""])
save("vocab", head(0, 3) + kv("general.architecture", 8, "llama") + vocab + array("tokenizer.ggml.scores", 6, [0.0] * 7))
TYPES = [(0, 1, 4), (1, 1, 2), (2, 32, 18), (3, 32, 20), (6, 32, 22), (7, 32, 24), (8, 32, 34), (10, 256, 84),
         (11, 256, 110), (12, 256, 144), (13, 256, 176), (14, 256, 210), (20, 32, 18), (23, 256, 136), (24, 1, 1),
         (30, 1, 2), (39, 32, 17), (40, 64, 36), (41, 128, 18), (42, 64, 18)]
table, at = b"", 0
for t, elems, size in TYPES:
    table += tensor("blk.%d.weight" % t, [elems, 2], t, at)
    at += (2 * size + 31) // 32 * 32
save("types", pad(head(len(TYPES), 0) + table) + bytes(range(256)) * (at // 256) + bytes(at % 256))
save("align64", pad(head(2, 1) + kv("general.alignment", 4, 64) + tensor("a", [4], 0, 0) + tensor("b", [4], 0, 64), 64)
     + bytes(80))
save("any_order", pad(head(3, 0) + tensor("c", [8], 0, 96) + tensor("a", [8], 0, 0) + tensor("b", [8], 0, 32)) + bytes(128))
save("scalar_tensor", pad(head(1, 0) + tensor("s", [], 0, 0)) + bytes(4))
save("split", pad(head(1, 3) + kv("split.no", 2, 0) + kv("split.count", 2, 2) + kv("split.tensors.count", 5, 2)
                  + tensor("a", [8], 0, 0)) + bytes(32))

# hostile
save("bad_magic", b"GGML" + head(0, 0)[4:])
save("bad_v1", b"GGUF" + struct.pack("<III", 1, 0, 0) + bytes(12))
save("bad_big_endian", b"GGUF" + struct.pack(">IQQ", 3, 0, 0))
save("bad_tensors_2_60", head(1 << 60, 0) + bytes(40))
save("bad_keys_2_60", head(0, 1 << 60) + bytes(40))
save("bad_string_2_63", head(0, 1) + s("k") + struct.pack("<IQ", 8, 1 << 63) + bytes(16))
save("bad_array_wrap", head(0, 1) + array("k", 10, [], (1 << 61) + 1) + bytes(16))
save("bad_array_cut", head(0, 1) + array("k", 8, ["a"], 1 << 20))
save("bad_nested", head(0, 1) + s("k") + struct.pack("<IIQIQ", 9, 9, 1, 4, 0))
save("bad_bool", head(0, 1) + kv("k", 7, 2) + bytes(8))
save("bad_key_empty", head(0, 1) + kv("", 4, 2) + bytes(8))
save("bad_key_nul", head(0, 1) + kv(b"a\0b", 4, 2))
save("bad_key_twice", head(0, 2) + kv("same", 4, 1) + kv("same", 4, 2))
save("bad_align_24", head(0, 1) + kv("general.alignment", 4, 24))
save("bad_align_type", head(0, 1) + kv("general.alignment", 10, 32))
save("bad_name_twice", pad(head(2, 0) + tensor("t", [8], 0, 0) + tensor("t", [8], 0, 32)) + bytes(64))
save("bad_dim_0", pad(head(1, 0) + tensor("t", [0, 4, 1, 1], 0, 0)) + bytes(64))
save("bad_dims_wrap", pad(head(1, 0) + tensor("t", [(1 << 63) - 1, 2, 1, 1], 24, 0)) + bytes(64))
save("bad_dims_large", pad(head(1, 0) + tensor("t", [32, (1 << 42) + 1], 2, 0)) + bytes(64))
save("bad_q4_31", pad(head(1, 0) + tensor("t", [31], 2, 0)) + bytes(64))
save("bad_type_4", pad(head(1, 0) + tensor("t", [32], 4, 0)) + bytes(64))
save("bad_offset", pad(head(1, 0) + tensor("t", [8], 0, 4)) + bytes(64))
save("bad_cut", pad(head(1, 0) + tensor("t", [64], 0, 0)) + bytes(128))
save("bad_overlap", pad(head(2, 0) + tensor("a", [16], 0, 0) + tensor("b", [16], 0, 32)) + bytes(96))
