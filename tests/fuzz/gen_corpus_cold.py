#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""Pages of conversations for fuzz_cold.c, written after src/store/pn_cold_file.h alone.

    tests/fuzz/gen_corpus_cold.py        writes tests/fuzz/corpus/cold/

The whole files are what the reader of the fuzz target takes, so this is a second opinion on the format as well.
The first byte of each is the target's: 1 makes the sums right; 2 is for a recurrent model.
"""
import hashlib
import os
import struct

PAGE, BLOCK = 64, 4096
GROUPS = [(1, 1, 2, 2, 0, 0), (1, 2, 2, 4, 100, 0)]     # layers, heads, d_k, d_v, window, part
F16 = 1
SLOT = 1000             # bytes of recurrent state, of the model that has some


def crc32c(data):
    r = 0xFFFFFFFF
    for b in data:
        r ^= b
        for _ in range(8):
            r = r >> 1 ^ (0x82F63B78 if r & 1 else 0)
    return r ^ 0xFFFFFFFF


def digest(data):
    return hashlib.blake2s(data, digest_size=16).digest()


def seal(block):
    block = block.ljust(BLOCK - 4, b"\0")
    return block + struct.pack("<I", crc32c(block))


def page_bytes(g):
    layers, heads, d_k, d_v, _, _ = g
    return layers * heads * PAGE * (d_k + d_v) * 2


def make(present, tokens=None, identity=None, state=None):
    identity = identity or b"".join(bytes([i + 1]) * 16 for i in range(6))
    tokens = tokens or [3 * i for i in range(PAGE)]
    text = struct.pack("<64i", *tokens)
    root = digest(identity + struct.pack("<5Q", PAGE, F16, 0, 0, len(GROUPS)) + b"".join(struct.pack("<6Q", *g) for g in GROUPS) +
                  (struct.pack("<Q", SLOT) if state is not None else b""))
    payloads = [bytes((7 * i + n) & 255 for i in range(page_bytes(g))).ljust(-(-page_bytes(g) // BLOCK) * BLOCK, b"\0") if p else b""
                for n, (g, p) in enumerate(zip(GROUPS, present))]
    payloads += [b""] * 5 + [bytes((3 * i) & 255 for i in range(SLOT)).ljust(BLOCK, b"\0") if state else b""]
    size = 2 * BLOCK + sum(map(len, payloads))
    head = b"PNCOLD\x1a\n" + struct.pack("<II", 1, PAGE) + identity + digest(root + text) + root
    head += struct.pack("<IIQ", F16, len(GROUPS), size) + text
    for g, p in zip(GROUPS, present):
        head += struct.pack("<6I4B4xQ", *g, p, F16, F16, 0, page_bytes(g))
    if state is not None:
        head = head.ljust(416 + 7 * 40, b"\0") + struct.pack("<24xB7xQ", state, SLOT)
    head = seal(head)
    sums = [crc32c(p) if p else 0 for p in payloads]
    foot = seal(b"PNCOLDOK" + struct.pack("<QI8I", size, crc32c(head), *sums))
    return head + b"".join(payloads) + foot


def main():
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "corpus", "cold")
    os.makedirs(out, exist_ok=True)
    whole, first = make([1, 1]), make([1, 0])
    files = {
        "whole": b"\0" + whole,
        "no_window": b"\0" + first,
        "other_tokens": b"\0" + make([1, 0], tokens=[3 * i + (i == 63) for i in range(PAGE)]),
        "other_model": b"\0" + make([1, 0], identity=b"\7" * 96),
        "cut": b"\0" + first[:-BLOCK],
        "trailing": b"\1" + first + bytes(BLOCK),
        "no_foot": b"\0" + first[:-BLOCK] + bytes(BLOCK),
        "present_is_2": b"\1" + first[:440] + b"\2" + first[441:],
        "padding": b"\1" + first[:2 * BLOCK - 1] + b"\1" + first[2 * BLOCK:],
        "state": b"\2" + make([1, 1], state=1),
        "no_state": b"\2" + make([1, 1], state=0),
        "state_of_none": b"\0" + make([1, 1], state=1),
    }
    for name, data in files.items():
        with open(os.path.join(out, name), "wb") as f:
            f.write(data)


main()
