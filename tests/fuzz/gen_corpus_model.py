#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""gen_corpus_model.py - whole models of a few KiB, one a family, as seeds for fuzz_model.

    python3 tests/fuzz/gen_corpus_model.py        writes tests/fuzz/corpus/model/

Width 32, two layers, 24 tokens, random Q8_0 weights from a fixed seed.
"""
import os, random, struct

U32, F32, BOOL, STR, ARR = 4, 6, 7, 8, 9
D, LAYERS, HEADS, KV, HEAD, FF, VOCAB, EXPERTS = 32, 2, 2, 1, 32, 64, 24, 4


def text(s):
    s = s.encode()
    return struct.pack("<Q", len(s)) + s


def value(v):
    if isinstance(v, bool):
        return struct.pack("<IB", BOOL, v)
    if isinstance(v, int):
        return struct.pack("<II", U32, v)
    if isinstance(v, float):
        return struct.pack("<If", F32, v)
    if isinstance(v, str):
        return struct.pack("<I", STR) + text(v)
    if isinstance(v[0], str):
        return struct.pack("<IIQ", ARR, STR, len(v)) + b"".join(map(text, v))
    kind, code = (F32, "f") if isinstance(v[0], float) else (5, "i")
    return struct.pack("<IIQ", ARR, kind, len(v)) + struct.pack("<%d%s" % (len(v), code), *v)


def f32(n):
    return struct.pack("<%df" % n, *(random.uniform(0.5, 1.5) for _ in range(n)))


def q8(rows, cols):
    return b"".join(struct.pack("<H", 0x1c00) + random.randbytes(32) for _ in range(rows * cols // 32))


class Model:
    def __init__(self, arch, **keys):
        self.arch, self.tensors = arch, []
        self.kv = {"general.architecture": arch, arch + ".context_length": 64, arch + ".embedding_length": D,
                   arch + ".block_count": LAYERS, arch + ".feed_forward_length": FF, arch + ".attention.head_count": HEADS,
                   arch + ".attention.head_count_kv": KV, arch + ".attention.key_length": HEAD,
                   arch + ".attention.value_length": HEAD, arch + ".attention.layer_norm_rms_epsilon": 1e-5}
        for k, v in keys.items():
            self.kv[arch + "." + k.replace("__", ".")] = v
        tokens = ["<unk>", "<s>", "</s>"] + ["<0x%02X>" % b for b in b"\xff\xc3\xa9"] + \
                 ["\u2581", "H", "i", "\u2581Hi", "Hi", "x", "<", ">", "|", "_", "im", "end", "<|im_end|>", "<|im_start|>",
                  "a", "b", "c", "d"]
        types = [2, 3, 3, 6, 6, 6] + [1] * 12 + [3, 3] + [1] * 4
        self.kv.update({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
                        "tokenizer.ggml.scores": [-float(i) for i in range(VOCAB)], "tokenizer.ggml.token_type": types,
                        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
                        "tokenizer.chat_template": "<|im_start|>{{ role }}<|im_end|>"})
        self.matrix("token_embd.weight", D, VOCAB)
        self.vector("output_norm.weight", D)

    def vector(self, name, n):
        self.tensors.append((name, [n], 0, f32(n)))

    def matrix(self, name, cols, rows, stack=1):
        self.tensors.append((name, [cols, rows] + ([stack] if stack > 1 else []), 8, q8(rows * stack, cols)))

    def attention(self, b, fused=False, bias=False, norms=False, post=False):
        q, k = HEADS * HEAD, KV * HEAD
        self.vector(b + "attn_norm.weight", D)
        if fused:
            self.matrix(b + "attn_qkv.weight", D, q + 2 * k)
        else:
            for name, n in (("q", q), ("k", k), ("v", k)):
                self.matrix(b + "attn_%s.weight" % name, D, n)
                if bias:
                    self.vector(b + "attn_%s.bias" % name, n)
        self.matrix(b + "attn_output.weight", q, D)
        self.vector(b + "ffn_norm.weight", D)
        if norms:
            self.vector(b + "attn_q_norm.weight", HEAD)
            self.vector(b + "attn_k_norm.weight", HEAD)
        if post:
            self.vector(b + "post_attention_norm.weight", D)
            self.vector(b + "post_ffw_norm.weight", D)

    def ffn(self, b, fused=False):
        if not fused:
            self.matrix(b + "ffn_gate.weight", D, FF)
        self.matrix(b + "ffn_up.weight", D, FF * (2 if fused else 1))
        self.matrix(b + "ffn_down.weight", FF, D)

    def experts(self, b, shared=False):
        self.tensors.append((b + "ffn_gate_inp.weight", [D, EXPERTS], 0, f32(D * EXPERTS)))
        self.matrix(b + "ffn_gate_exps.weight", D, 32, EXPERTS)
        self.matrix(b + "ffn_up_exps.weight", D, 32, EXPERTS)
        self.matrix(b + "ffn_down_exps.weight", 32, D, EXPERTS)
        if shared:
            self.vector(b + "ffn_gate_inp_shexp.weight", D)
            for n, i, o in (("gate", D, FF), ("up", D, FF), ("down", FF, D)):
                self.matrix(b + "ffn_%s_shexp.weight" % n, i, o)

    def convolution(self, b, taps):
        self.vector(b + "attn_norm.weight", D)
        self.matrix(b + "shortconv.in_proj.weight", D, 3 * D)
        self.tensors.append((b + "shortconv.conv.weight", [taps, D], 0, f32(taps * D)))
        self.matrix(b + "shortconv.out_proj.weight", D, D)
        self.vector(b + "ffn_norm.weight", D)

    def write(self, name):
        head = struct.pack("<4sIQQ", b"GGUF", 3, len(self.tensors), len(self.kv))
        head += b"".join(text(k) + value(v) for k, v in self.kv.items())
        data = b""
        for n, ne, kind, raw in self.tensors:
            head += text(n) + struct.pack("<I%dQIQ" % len(ne), len(ne), *ne, kind, len(data))
            data += raw + b"\0" * (-len(raw) % 32)
        folder = os.path.join(os.path.dirname(__file__), "corpus", "model")
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, name + ".gguf"), "wb") as f:
            f.write(head + b"\0" * (-len(head) % 32) + data)


def main():
    random.seed(20261129)
    moe = dict(expert_count=EXPERTS, expert_used_count=2, expert_feed_forward_length=32)
    for name, m, attn, ff in (
            ("llama", Model("llama"), {}, "dense"),
            ("mistral3", Model("mistral3", rope__scaling__type="yarn", rope__scaling__factor=4.0,
                               rope__scaling__original_context_length=16, attention__temperature_scale=0.1), {}, "dense"),
            ("qwen2", Model("qwen2"), dict(bias=True), "dense"),
            ("qwen3moe", Model("qwen3moe", **moe), dict(norms=True), "moe"),
            ("qwen2moe", Model("qwen2moe", expert_shared_feed_forward_length=FF, **moe), dict(bias=True), "shared"),
            ("phi3", Model("phi3", rope__dimension_count=16), dict(fused=True), "fused"),
            ("gemma2", Model("gemma2", attention__sliding_window=8), dict(post=True), "dense"),
            ("gemma3", Model("gemma3", attention__sliding_window=8, attention__sliding_window_pattern=2),
             dict(post=True, norms=True), "dense")):
        for il in range(LAYERS):
            b = "blk.%d." % il
            m.attention(b, **attn)
            {"dense": m.ffn, "moe": m.experts, "fused": lambda b: m.ffn(b, True),
             "shared": lambda b: m.experts(b, True)}[ff](b)
        if name == "qwen2moe":
            m.matrix("output.weight", D, VOCAB)
        m.write(name)
    m = Model("lfm2", shortconv__l_cache=3)
    m.kv["lfm2.attention.head_count_kv"] = [0, KV]
    m.convolution("blk.0.", 3)
    m.attention("blk.1.", norms=True)
    for il in range(LAYERS):
        m.ffn("blk.%d." % il)
    m.write("lfm2")


if __name__ == "__main__":
    main()
