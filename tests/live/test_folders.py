#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_folders.py - models as published, Hugging Face folders and files of torch, through every command and the server.

    python3 tests/live/test_folders.py build/pantheon [GGUF]

Run from the repository root.  The folders are the tiny ones of tests/vectors/hf; what their numbers should be is tests/api/test_hf.c's
matter, this is about what a user sees.
"""
import json
import os
import shutil
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, content  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

HF = "tests/vectors/hf"
QWEN = HF + "/qwen3_tied"
#        folder         family   vocabulary  files with config.json
MODELS = ("llama_bf16", "llama", 320, 3), ("qwen3_tied", "qwen3", 304, 2), ("phi3_f16", "phi3", 400, 2), ("mixtral_f32", "llama", 384, 2)
TOOLS = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}}]


class Done:
    def __init__(self, pantheon, *args):
        p = subprocess.run([pantheon] + list(args), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=clean_env())
        self.code, self.out, self.err = p.returncode, p.stdout, p.stderr.decode("utf-8", "replace")

    def json(self):
        return json.loads(self.out)


def copy(folder, *files):
    os.makedirs(folder, exist_ok=True)
    for f in files:
        shutil.copy(f, folder)
    return folder


def around(model):
    """What is beside the weights."""
    return [os.path.join(model, f) for f in sorted(os.listdir(model)) if f.endswith((".json", ".jinja")) and "index" not in f]


def ids(pantheon, model, request, tmp):
    """The prompt of a chat as `render` has it."""
    path = os.path.join(tmp, "request.json")
    with open(path, "w") as f:
        json.dump(dict({"add_generation_prompt": True}, **request), f)
    r = Done(pantheon, "render", "-m", model, "--input", path, "--ids")
    equal(r.code, 0, "render of %s: %s" % (model, r.err))
    return r.out.decode().strip().strip("[]").split(",")


def commands(pantheon, tmp, pth):
    for path, arch, vocab, parts in [(HF + "/" + m[0],) + m[1:] for m in MODELS] + [(QWEN + "/model.safetensors", "qwen3", 304, 2), (pth, "qwen3", 304, 2)]:
        i, p = Done(pantheon, "inspect", path, "--json", "--tensors").json(), Done(pantheon, "plan", path, "--ctx", "64", "--json").json()
        equal((i["parts"], i["metadata"]["general.architecture"], i["plan"]["n_vocab"], len(i["tensors"])), (parts, arch, vocab, i["n_tensors"]),
              "inspect --json of %s" % path)
        check(all(t["part"] < parts for t in i["tensors"]), "inspect --json of %s: parts of tensors" % path)
        equal((p["arch"], p["n_vocab"], p["n_ctx"], p["fits"], p["n_params"]), (arch, vocab, 64, True, i["plan"]["n_params"]), "plan --json of %s" % path)
        check(p["weight_bytes"] > 0 and p["vocab_bytes"] > 0, "plan --json of %s: bytes" % path, p)
        ts = Done(pantheon, "tokenize", "-m", path, "Hello world").out.decode().strip()
        equal(Done(pantheon, "detokenize", "-m", path, "--tokens", ts).out, b"Hello world", "%s: tokens and back" % path)
        r = Done(pantheon, "run", "-m", path, "-p", "Hello", "-n", "4", "--temp", "0", "--ignore-eos")
        check(r.code == 0 and "decode 4 tokens" in r.err, "run of %s" % path, r.err)
        r = Done(pantheon, "run", "-m", path, "--chat", "-p", "Hello", "-n", "4", "--temp", "0")
        check(r.code == 0 and "prefill" in r.err, "run --chat of %s" % path, r.err)
        b = Done(pantheon, "bench", "-m", path, "-p", "8", "-n", "2", "-r", "1", "-o", "json").json()
        equal(len(b), 2, "bench of %s" % path)
        out = os.path.join(tmp, "x.f32")
        equal((Done(pantheon, "logits", "-m", path, "--tokens", "1,2,3", "-o", out).code, os.path.getsize(out)), (0, 3 * vocab * 4), "logits of %s" % path)
        r = Done(pantheon, "perplexity", "-m", path, "--file", "README.md", "--ctx", "32", "--chunks", "1")
        check(r.code == 0 and r.out.startswith(b"perplexity "), "perplexity of %s" % path, r.err)
        gguf = os.path.join(tmp, "x.gguf")
        equal(Done(pantheon, "quantize", path, gguf, "Q8_0").code, 0, "quantize of %s" % path)
        i = Done(pantheon, "inspect", gguf, "--json").json()
        equal((i["parts"], i["metadata"]["general.architecture"], i["metadata"]["general.file_type"]), (1, arch, 7), "%s as a GGUF file" % path)


def tensors_alone(pantheon, tmp):
    st = os.path.join(tmp, "alone.safetensors")
    r = Done(pantheon, "convert", HF + "/pth/odd.pth", st)
    check(r.code == 0 and "wrote" in r.err, "convert", r.err)
    for path, n in (HF + "/pth/odd.pth", 90), (HF + "/st/odd.safetensors", 7), (st, None):
        i = Done(pantheon, "inspect", path, "--json", "--tensors").json()
        check(i["plan"] is None and "config.json" in i["plan_error"] and i["metadata"] == {}, "%s alone: no plan" % path, i["plan_error"])
        check(len(i["tensors"]) == i["n_tensors"] == (n or i["n_tensors"]), "%s alone: its tensors" % path, i["n_tensors"])
        check({"BOOL", "F8_E4M3", "F32"} <= {t["type"] for t in i["tensors"]}, "%s alone: formats by name" % path)
        r = Done(pantheon, "inspect", path, "--tensors")
        check(r.code == 0 and b"F8_E4M3" in r.out, "%s alone, as a table" % path, r.err)
        for command in ("plan", path), ("run", "-m", path, "-p", "x"), ("tokenize", "-m", path, "x"), ("quantize", path, os.path.join(tmp, "no.gguf"), "Q8_0"):
            r = Done(pantheon, *command)
            check(r.code == 1 and path in r.err and "config.json" in r.err, "%s alone, %s" % (path, command[0]), r.err)


def refusals(pantheon, tmp, gguf):
    def made(name, *files):
        return copy(os.path.join(tmp, name), *files)

    adapter, shard = made("adapter"), made("shard", *[HF + "/llama_bf16/" + f for f in os.listdir(HF + "/llama_bf16")])
    with open(os.path.join(adapter, "adapter_config.json"), "w") as f:
        f.write("{}")
    os.remove(os.path.join(shard, "model-00002-of-00002.safetensors"))
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9942981696\n"
    lfs = [made("lfs%d" % i, *[QWEN + "/" + f for f in os.listdir(QWEN)]) for i in range(3)]
    for folder, name in zip(lfs, ("config.json", "tokenizer.json", "model.safetensors")):
        with open(os.path.join(folder, name), "wb") as f:
            f.write(pointer)
    rows = (made("empty"), "no config.json"), (lfs[0], "Git LFS"), (lfs[1], "Git LFS"), (lfs[2], "Git LFS"), (QWEN + "/config.json", "folder"), (adapter, "adapter"), (made("around", gguf), "'" + os.path.basename(gguf) + "'"), \
        (made("both", gguf, QWEN + "/config.json"), "'" + os.path.basename(gguf) + "'"), (shard, "model-00002-of-00002.safetensors"), \
        (made("tensors", QWEN + "/model.safetensors") + "/model.safetensors", "config.json"), \
        (os.path.join(tmp, "none.pth"), "no such file"), (os.path.join(tmp, "none/model.safetensors"), "no such file"), \
        (made("weightless", *around(QWEN)), "pytorch_model.bin")
    for path, says in rows:
        r = Done(pantheon, "run", "-m", path, "-p", "x")
        check(r.code == 1 and says in r.err and path in r.err and r.err.count("\n") == 1, "refused: %s" % path, r.err)
    with Server(pantheon, "-m", gguf, "--name", "demo") as s:
        for path, says in rows:
            r = s.post("/admin/models/load", {"name": "x", "path": path})
            check(400 <= r.status < 500 and says in r.error().get("message", ""), "refused by the server: %s" % path, (r.status, r.body))
        equal((s.model("x")["state"], len(s.get("/v1/models").json()["data"])), ("failed", 1), "it is listed as failed, for administrators")


def with_tool_template(folder):
    """qwen3_tied with a template of its own for tools, as a list in tokenizer_config.json."""
    copy(folder, *[QWEN + "/" + f for f in os.listdir(QWEN)])
    path = os.path.join(folder, "tokenizer_config.json")
    with open(path) as f:
        config = json.load(f)
    config["chat_template"] = [{"name": "default", "template": config["chat_template"]},
                               {"name": "tool_use", "template": "<|im_start|>{{ tools | length }} tools, {{ messages | length }} messages"}]
    with open(path, "w") as f:
        json.dump(config, f)
    return folder


def fp8_of(model, folder):
    """The fixture with FP8 codes of one scale each in place of its layers' matrices: numbers without a meaning, but a model."""
    copy(folder, *around(model))
    with open(os.path.join(model, "model.safetensors"), "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    header, data, out, at = {}, raw[8 + n:], [], 0

    def put(name, dtype, shape, body):
        nonlocal at
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(body)]}
        out.append(body)
        at += len(body)

    for name, t in json.loads(raw[8:8 + n]).items():
        if name.endswith("_proj.weight"):
            size = t["shape"][0] * t["shape"][1]
            put(name, "F8_E4M3", t["shape"], bytes((i * 37 % 64 + 24) | i % 3 % 2 << 7 for i in range(size)))
            put(name + "_scale_inv", "F32", [], struct.pack("<f", 0.013))
        elif name != "__metadata__":
            put(name, t["dtype"], t["shape"], data[t["data_offsets"][0]:t["data_offsets"][1]])
    text = json.dumps(header).encode()
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + b"".join(out))
    with open(os.path.join(folder, "config.json")) as f:
        config = json.load(f)
    config["quantization_config"] = {"quant_method": "fp8", "activation_scheme": "static"}
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config, f)
    return folder


def quantised(pantheon, tmp):
    path, gguf = fp8_of(QWEN, os.path.join(tmp, "fp8")), os.path.join(tmp, "fp8.gguf")
    i = Done(pantheon, "inspect", path, "--json", "--tensors").json()
    equal(sorted({t["type"] for t in i["tensors"]}), ["F32", "F8_E4M3"], "formats of a quantised folder")
    r = Done(pantheon, "inspect", path)
    check(b"  F8_E4M3      14 tensors" in r.out, "it says how many are quantised", r.out)
    plan, less = (Done(pantheon, "plan", path, "--ctx", "64", "--json", *more).json() for more in ([], ["--load-type", "q8_0"]))
    check(less["load_bytes"] and plan["load_bytes"] and less["weight_bytes"] < plan["weight_bytes"], "a smaller type is a smaller plan", (plan, less))
    r = Done(pantheon, "run", "-m", path, "--chat", "-p", "Hi", "-n", "5", "--temp", "0")
    check(r.code == 0 and "qwen3 F16" in r.err, "run of a quantised folder", r.err)
    for how in "map", "stream":
        no = Done(pantheon, "run", "-m", path, "-p", "Hi", "--residency", how)
        check(no.code == 1 and "F8_E4M3" in no.err and "auto or anon" in no.err, "quantised weights, --residency %s" % how, no.err)
    equal(Done(pantheon, "quantize", path, gguf, "F16").code, 0, "quantize of a quantised folder")
    equal(Done(pantheon, "run", "-m", gguf, "--chat", "-p", "Hi", "-n", "5", "--temp", "0").out, r.out, "its file in F16 says the same")
    with Server(pantheon, "-m", path, "--ctx", "256") as s:
        equal(s.post("/v1/chat/completions", chat("Hi", model="fp8", max_tokens=3)).status, 200, "a quantised folder is served")
        equal(s.model("fp8")["residency"], "anon", "and its weights are in memory")


def tool_templates(pantheon, tmp):
    files = copy(os.path.join(tmp, "files"), *[QWEN + "/" + f for f in os.listdir(QWEN)])
    os.mkdir(files + "/additional_chat_templates")
    for name, text in ("chat_template.jinja", "<|im_start|>one"), ("additional_chat_templates/tool_use.jinja", "<|im_end|>"):
        with open(os.path.join(files, name), "w") as f:
            f.write(text)
    request = {"messages": [{"role": "user", "content": "Hi"}]}
    equal((len(ids(pantheon, files, request, tmp)), len(ids(pantheon, files, dict(request, tools=TOOLS), tmp))), (3, 1), "templates in files")
    folder, gguf = with_tool_template(os.path.join(tmp, "caller")), os.path.join(tmp, "caller.gguf")
    equal(Done(pantheon, "quantize", folder, gguf, "F32").code, 0, "quantize of a folder with two templates")
    plain, tools = ids(pantheon, folder, request, tmp), ids(pantheon, folder, dict(request, tools=TOOLS), tmp)
    check(plain != tools, "render: tools have their own template")
    equal(ids(pantheon, folder, dict(request, tools=[]), tmp), plain, "render: no tool is no tools")
    equal((ids(pantheon, gguf, request, tmp), ids(pantheon, gguf, dict(request, tools=TOOLS), tmp)), (plain, tools), "a GGUF file made of it has both")
    with Server(pantheon, "-m", folder, "-m", gguf, "--name", "file") as s:
        for name in "caller", "file":
            n = s.post("/v1/chat/completions", chat("Hi", model=name, max_tokens=1)).json()["usage"]["prompt_tokens"]
            m = s.post("/v1/chat/completions", chat("Hi", model=name, max_tokens=1, tools=TOOLS)).json()["usage"]["prompt_tokens"]
            equal((n, m), (len(plain), len(tools)), "chat: tools have their own template")


def patterns(pantheon, tmp):
    """qwen3_tied, cut by patterns that have no name: the folder and a GGUF file of it give the same ids, other ones than before."""
    folder, gguf = copy(os.path.join(tmp, "patterns"), *[QWEN + "/" + f for f in os.listdir(QWEN)]), os.path.join(tmp, "patterns.gguf")
    path = os.path.join(folder, "tokenizer.json")
    with open(path) as f:
        tokenizer = json.load(f)
    split = tokenizer["pre_tokenizer"]["pretokenizers"]
    split[0] = {"type": "Split", "pattern": {"Regex": r"(?<=[a-z])[a-z](?![a-z])|\s++|."}, "behavior": "MergedWithPrevious", "invert": False}
    split.insert(1, {"type": "Split", "pattern": {"String": "l"}, "behavior": "Isolated", "invert": False})
    with open(path, "w") as f:
        json.dump(tokenizer, f)
    r = Done(pantheon, "quantize", folder, gguf, "F32")
    equal(r.code, 0, "quantize of a folder with patterns: %s" % r.err)
    check("others refuse it" in r.err, "quantize says that others refuse the file", r.err)
    r = Done(pantheon, "inspect", gguf)
    check(b"pantheon-patterns" in r.out and b"pantheon.tokenizer.patterns" in r.out, "inspect shows the patterns", r.out)
    differ = 0
    for text in "Hello  world", "all the hills", "1234 l\n":
        cut = [Done(pantheon, "tokenize", "-m", m, text).out for m in (folder, gguf, QWEN)]
        check(cut[0] and cut[0] == cut[1], "one text, one list of ids: %r" % text, cut)
        differ += cut[0] != cut[2]
    check(differ, "the patterns count")


def served(pantheon, tmp, pth, gguf):
    folder = HF + "/llama_bf16"
    with Server(pantheon, "-m", folder, "--max-concurrent", "2") as s:
        m = s.get("/v1/models").json()["data"]
        equal([(x["id"], x["state"], x["context_length"]) for x in m], [("llama_bf16", "ready", 256)], "/v1/models: a folder by its name")
        r = s.post("/v1/completions", {"model": "llama_bf16", "prompt": "Hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True})
        equal((r.status, r.json()["usage"]["completion_tokens"]), (200, 4), "completion")
        equal(s.stream("/v1/completions", {"prompt": "Hello", "max_tokens": 4, "temperature": 0}).status, 200, "completion, streamed")
        request = chat("Hi there", model="llama_bf16", max_tokens=4)
        r = s.post("/v1/chat/completions", request)
        equal((r.status, r.json()["usage"]["prompt_tokens"]), (200, len(ids(pantheon, folder, {"messages": request["messages"]}, tmp))),
              "chat: the prompt is the folder's template's")
        want = content(r)

        for name, path, arch in ("phi", HF + "/phi3_f16/", "phi3"), ("experts", HF + "/mixtral_f32", "llama"), (None, pth, "qwen3"), \
                ("tied", QWEN + "/model.safetensors", "qwen3"), ("demo", gguf, None):
            r = s.post("/admin/models/load", {"name": name, "path": path} if name else {"path": path})
            check(r.status == 200 and r.json()["state"] == "ready", "load of %s" % path, r.body)
            name = r.json()["name"]
            equal(name, name if path != pth else "torch", "a .pth has its folder's name")
            r = s.post("/v1/chat/completions", chat("Hi", model=name, max_tokens=3))
            check(r.status == 200 and r.json()["model"] == name, "%s answers" % path, r.body)
            equal(s.model(name)["path"], path, "/admin/models: %s" % path)
        equal([x["id"] for x in s.get("/v1/models").json()["data"]], ["llama_bf16", "phi", "experts", "torch", "tied", "demo"], "folders and a file, one server")
        for name in "torch", "phi":
            equal(s.post("/admin/models/unload", {"name": name}).status, 200, "unload of %s" % name)
            equal(s.post("/v1/chat/completions", chat("Hi", model=name)).status, 404, "%s is gone" % name)
        equal(s.post("/admin/models/load", {"path": pth}).status, 200, "and loaded again")
        equal(content(s.post("/v1/chat/completions", request)), want, "the first one answers as before")
        equal(s.stop(), 0, "it ends in order")


def main():
    pantheon, gguf = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    with tempfile.TemporaryDirectory() as tmp:
        pth = os.path.join(copy(os.path.join(tmp, "torch"), *around(QWEN)), "step-1000.pth")
        shutil.copy(HF + "/pth/qwen3_tied.pth", pth)
        checks.section(commands, pantheon, tmp, pth)
        checks.section(tensors_alone, pantheon, tmp)
        checks.section(refusals, pantheon, tmp, gguf)
        checks.section(quantised, pantheon, tmp)
        checks.section(tool_templates, pantheon, tmp)
        checks.section(patterns, pantheon, tmp)
        checks.section(served, pantheon, tmp, pth, gguf)
    return checks.end()


sys.exit(main())
