#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_error_table.py - every way a request can be refused, and what other servers got wrong, at a running server.

    python3 tests/live/test_error_table.py build/pantheon [MODEL]

Run from the repository root; Python's standard library alone.  A table: what is asked, which status, and what the
error has to say: OpenAI's four keys, type, code, the field that is meant, and words that agents look for.
"""
import json
import os
import re
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

CHAT, COMPLETIONS, RESPONSES, MESSAGES, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings"
INVALID = "invalid_request_error"
# opencode's and others' patterns for a context that is too long, and for what is none
OVERFLOW = (r"prompt is too long", r"maximum context length is \d+ tokens", r"exceeds the available context size", r"reduce the length of the messages")
NO_OVERFLOW = r"rate limit|too many requests"
HI = [{"role": "user", "content": "Hi"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}


def body(**fields):
    return dict({"messages": HI, "max_tokens": 2, "temperature": 0}, **fields)


def error(reply, status, name, kind=None, code=None, param=None, words=None):
    """The error of a reply, judged.  code and param None: not looked at; param "": null."""
    if not equal(reply.status, status, "%s: status" % name):
        print("     %r" % reply.body[:300])
    try:
        e = reply.error()
    except ValueError:
        e = {}
    check(set(e) >= {"message", "type", "param", "code"}, "%s: message, type, param and code" % name, reply.body)
    check(isinstance(e.get("message"), str) and e["message"], "%s: a message" % name, e)
    check(e.get("code") is None or isinstance(e["code"], str), "%s: code is a text or null" % name, e)
    equal((reply.headers["Content-Type"] or "").split(";")[0], "application/json", "%s: JSON" % name)
    if kind:
        equal(e.get("type"), kind, "%s: type" % name)
    if code:
        equal(e.get("code"), code, "%s: code" % name)
    if param is not None:
        equal(e.get("param") or "", param, "%s: param" % name)
    if words:
        check(re.search(words, e.get("message", "")), "%s: says %s" % (name, words), e.get("message"))
    if status >= 500 and status != 503:
        equal(reply.headers["x-should-retry"], "false", "%s: clients do not try again" % name)
    return e


def anthropic_error(reply, status, kind, name):
    equal(reply.status, status, "%s: status" % name)
    e = reply.json()
    equal([e.get("type"), e.get("error", {}).get("type")], ["error", kind], "%s: type" % name)
    check(e.get("error", {}).get("message"), "%s: message" % name, e)


def retry_after(reply, name):
    check(re.match(r"^[1-9]\d*$", reply.headers["Retry-After"] or ""), "%s: Retry-After" % name, reply.headers["Retry-After"])
    ms = int(reply.headers["retry-after-ms"] or 0)
    check(1 <= ms < 60000, "%s: retry-after-ms" % name, ms)


def raw(s, data, half=False):
    """What comes back for these bytes until the server closes."""
    with s.connect() as c:
        c.sendall(data)
        if half:
            c.shutdown(socket.SHUT_WR)
        got = b""
        while True:
            more = c.recv(65536)
            if not more:
                return got
            got += more


def raw_error(s, data, status, name, code=None):
    got = raw(s, data)
    m = re.match(rb"HTTP/1\.1 (\d+) ", got)
    equal(int(m.group(1)) if m else got[:100], status, "%s: status" % name)
    at = got.find(b"\r\n\r\n")
    try:
        e = json.loads(got[at + 4:])["error"]
    except (ValueError, KeyError):
        e = {}
    check(set(e) >= {"message", "type", "param", "code"}, "%s: message, type, param and code" % name, got[:400])
    check(b"Connection: close" in got, "%s: and closes" % name)
    if code:
        equal(e.get("code"), code, "%s: code" % name)


# --- 400: bodies and fields ---------------------------------------------------------------------------

def bodies(s):
    for name, data in ("nothing", b""), ("not JSON", b"{"), ("two values", b"{}{}"), ("an array", b"[]"), ("a text", b'"x"'), ("deep", b"[" * 300), \
            ("a comma too many", b'{"messages":[],}'):
        for path in CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, "/tokenize", "/detokenize", "/apply-template", "/admin/models/load":
            error(s.post(path, data), 400, "%s, %s" % (path, name), INVALID)
        anthropic_error(s.post(MESSAGES, data), 400, INVALID, "%s, %s" % (MESSAGES, name))


FIELDS = [  # path, fields, the param of the error, what it says
    (CHAT, dict(messages=None), "messages", None), (CHAT, dict(messages=[]), "messages", None), (CHAT, dict(messages="Hi"), "messages", None),
    (CHAT, dict(messages=[5]), "messages.0", None), (CHAT, dict(messages=[{"role": "king", "content": "Hi"}]), "messages.0.role", None),
    (CHAT, dict(messages=[{"content": "Hi"}]), "messages.0.role", None),
    (CHAT, dict(messages=HI + [{"role": "user", "content": 5}]), "messages.1.content", None),
    (CHAT, dict(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]), "messages.0.content", None),
    (CHAT, dict(model=5), "model", None), (CHAT, dict(stream="yes"), "stream", None), (CHAT, dict(temperature="hot"), "temperature", None),
    (CHAT, dict(temperature=-1), "temperature", None), (CHAT, dict(top_p=2), "top_p", None),
    (CHAT, dict(max_tokens=0), "max_tokens", None), (CHAT, dict(max_tokens=-5), "max_tokens", None), (CHAT, dict(max_tokens=1.5), "max_tokens", None),
    (CHAT, dict(max_completion_tokens="x"), "max_completion_tokens", None), (CHAT, dict(n=0), "n", None), (CHAT, dict(n=1000), "n", None),
    (CHAT, dict(stop=5), "stop", None), (CHAT, dict(stop=["a"] * 100), "stop", None), (CHAT, dict(seed="x"), "seed", None),
    (CHAT, dict(logprobs=5), "logprobs", None), (CHAT, dict(top_logprobs=3), "top_logprobs", None),
    (CHAT, dict(logprobs=True, top_logprobs=21), "top_logprobs", None), (CHAT, dict(logit_bias=[1]), "logit_bias", None),
    (CHAT, dict(logit_bias={"x": 1}), "logit_bias", None), (CHAT, dict(presence_penalty="x"), "presence_penalty", None),
    (CHAT, dict(frequency_penalty="x"), "frequency_penalty", None), (CHAT, dict(response_format="json"), "response_format", None),
    (CHAT, dict(response_format={"type": "xml"}), "response_format", None),
    (CHAT, dict(response_format={"type": "json_schema"}), "response_format", None),
    (CHAT, dict(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "nothing"}}}), "response_format", r"/type"),
    (CHAT, dict(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {
        "type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "string", "pattern": "("}}}}}}}), "response_format",
     r"/properties/a/properties/b"),
    (CHAT, dict(response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "#/none"}}}), "response_format", None),
    (CHAT, dict(grammar="root ::= x"), "grammar", None), (CHAT, dict(grammar="root ::= ("), "grammar", None),
    (CHAT, dict(tools={}), "tools", None), (CHAT, dict(tools=[{"type": "function"}]), "tools.0", None),
    (CHAT, dict(tools=[{"type": "web_search"}]), "tools.0", None), (CHAT, dict(tool_choice="required"), "tool_choice", None),
    (CHAT, dict(tools=[TOOL], tool_choice="perhaps"), "tool_choice", None),
    (CHAT, dict(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}), "tool_choice", r"g"),
    (CHAT, dict(stream_options=5), "stream_options", None),
    (COMPLETIONS, dict(prompt=None), "prompt", None), (COMPLETIONS, dict(prompt=5), "prompt", None), (COMPLETIONS, dict(prompt=[]), "prompt", None),
    (COMPLETIONS, dict(prompt=[1, -1]), "prompt", None), (COMPLETIONS, dict(prompt=[[1], 5.5]), "prompt", None),
    (COMPLETIONS, dict(prompt="a", logprobs=50), "logprobs", None), (COMPLETIONS, dict(prompt="a", best_of=3), "best_of", None),
    (RESPONSES, dict(input=None), "input", None), (RESPONSES, dict(input=[{"type": "none"}]), "input.0", None),
    (RESPONSES, dict(input="Hi", previous_response_id="resp_1"), "previous_response_id", None), (RESPONSES, dict(input="Hi", background=True), "background", None),
    (RESPONSES, dict(input="Hi", max_output_tokens="x"), "max_output_tokens", None),
    (EMBEDDINGS, dict(input=None), "input", None), (EMBEDDINGS, dict(input=""), "input", None), (EMBEDDINGS, dict(input=[]), "input", None),
    (EMBEDDINGS, dict(input="a", encoding_format="hex"), "encoding_format", None), (EMBEDDINGS, dict(input="a", dimensions=0), "dimensions", None),
    (EMBEDDINGS, dict(input="a", pooling="max"), "pooling", None),
    ("/tokenize", dict(content=5), "content", None), ("/detokenize", dict(tokens="x"), "tokens", None), ("/detokenize", dict(tokens=[-1]), "tokens", None),
    ("/admin/models/load", dict(name="x"), "path", None), ("/admin/models/load", dict(name=5, path="y"), "name", None),
    ("/admin/models/load", dict(name="x", path="y", ctx_cap="z"), "ctx_cap", None), ("/admin/models/unload", dict(), "name", None),
]


def fields(s):
    for path, more, param, words in FIELDS:
        sent = dict(body() if path == CHAT else {}, **more)
        name = "%s %s" % (path, json.dumps(more)[:90])
        e = error(s.post(path, sent), 400, name, INVALID, words=words)
        check(re.split(r"[.\[]", param)[0] == re.split(r"[.\[]", e.get("param") or "")[0], "%s: param names %s" % (name, param), e.get("param"))
        if "." in param:                        # which one of the list
            check(re.search(r"\b%s\b" % param.split(".")[1], e.get("param") or ""), "%s: param says which" % name, e.get("param"))
        if sent.get("stream") is None and path in (CHAT, COMPLETIONS, RESPONSES):
            equal(s.post(path, dict(sent, stream=True)).status, 400, "%s: as a stream, too" % name)
    for name, more in ("no max_tokens of sense", dict(max_tokens="x")), ("a role", dict(messages=[{"role": "king", "content": "x"}])), ("no messages", dict(messages=None)):
        anthropic_error(s.post(MESSAGES, dict({"max_tokens": 2, "messages": HI}, **more)), 400, INVALID, "messages, %s" % name)


def taken(s):
    """What looks wrong and is answered: tools send it."""
    for name, more in ("temperature beyond 2", dict(temperature=9)), ("max_tokens -1: no limit", dict(max_tokens=-1, stop=["e"])), ("seven stops", dict(stop=list("abcdefg"))), \
            ("an unknown field", dict(frobnicate=1)), ("a seed below 0", dict(seed=-1)), ("no tools at all", dict(tools=[])):
        equal(s.post(CHAT, body(**more)).status, 200, "taken: %s" % name)
    r = s.post(CHAT, b'{"messages":[{"role":"user","content":"\xff"}],"max_tokens":2}')
    equal(r.status, 200, "taken: bad UTF-8 is replaced")


def empty_prompt(s):
    """The demo model has no token that begins a text: there is nothing to continue from, and that is no 500."""
    for more in dict(prompt=""), dict(prompt="", echo=True), dict(prompt=["a", ""]), dict(prompt="", stream=True):
        error(s.post(COMPLETIONS, dict(more, max_tokens=2)), 400, "completion %s" % more, INVALID, words="at least one token")
    equal(s.post(COMPLETIONS, {"prompt": "", "max_tokens": 0, "echo": True}).status, 200, "an empty prompt that is only counted")


def overflow(s):
    """Too long for the context: as a body, as a stream, in the middle of others, in every dialect."""
    long = [{"role": "user", "content": "fox " * 3000}]
    beside = s.stream(CHAT, chat("Tell me a story about a fox.", max_tokens=300, ignore_eos=True))
    beside.first()
    for name, path, sent in ("chat", CHAT, {"messages": long}), ("stream", CHAT, {"messages": long, "stream": True}), \
            ("n", CHAT, {"messages": long, "n": 3}), ("completion", COMPLETIONS, {"prompt": "fox " * 3000}), ("many prompts", COMPLETIONS, {
                "prompt": ["a", "b", "fox " * 3000, "c"], "max_tokens": 2}), ("responses", RESPONSES, {"input": "fox " * 3000}):
        e = error(s.post(path, sent), 400, "too long, %s" % name, "context_over_budget", "context_length_exceeded")
        for pattern in OVERFLOW:
            check(re.search(pattern, e.get("message", ""), re.I), "too long, %s: says %s" % (name, pattern), e.get("message"))
        check(not re.search(NO_OVERFLOW, e.get("message", ""), re.I), "too long, %s: does not sound like a rate" % name, e.get("message"))
        check(e.get("n_prompt_tokens", 0) > e.get("n_ctx", 1 << 40), "too long, %s: the numbers" % name, e)
    error(s.post(EMBEDDINGS, {"input": ["a", "fox " * 3000]}), 400, "too long, embeddings", "context_over_budget", "context_length_exceeded")
    r = s.post(MESSAGES, {"max_tokens": 5, "messages": long})
    anthropic_error(r, 400, INVALID, "too long, messages")
    check(re.search(OVERFLOW[0], r.json()["error"]["message"]), "too long, messages: the words", r.body)
    check(len(beside.text()) > 100 and beside.done, "too long: who runs beside is not disturbed")
    r = s.post(CHAT, body(max_tokens=1 << 30, stop=["e"]))
    equal(r.status, 200, "max_tokens beyond the context is clamped")


# --- who may, and where ---------------------------------------------------------------------------------

def keys(pantheon, model, tmp):
    path = os.path.join(tmp, "keys")
    with open(path, "w") as f:
        f.write("# ours\nright\n")
    with Server(pantheon, "-m", model, "--name", "demo", "--api-key-file", path, "--admin-key-file", path) as s:
        for name, sent in ("no key", {}), ("wrong key", {"Authorization": "Bearer wrong"}), ("not quite", {"x-api-key": "righ"}):
            for ask in CHAT, COMPLETIONS, RESPONSES, EMBEDDINGS, "/tokenize", "/admin/models/load":
                r = s.post(ask, body(), sent)
                error(r, 401, "%s, %s" % (ask, name), "authentication_error", "invalid_api_key")
                check(r.headers["WWW-Authenticate"], "%s, %s: WWW-Authenticate" % (ask, name))
            for ask in "/v1/models", "/metrics", "/admin/models", "/admin/memory", "/admin/dies":
                error(s.get(ask, sent), 401, "%s, %s" % (ask, name), "authentication_error", "invalid_api_key")
            anthropic_error(s.post(MESSAGES, body(), sent), 401, "authentication_error", "%s, %s" % (MESSAGES, name))
        equal(s.post(CHAT, body(), {"api-key": "right"}).status, 200, "the right key")
        # What is wrong with the head is said to anybody, with any fields before it.
        raw_error(s, b"GET /health HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nOrigin: a\r\nbroken\r\n\r\n", 400, "a broken line after others")
        equal(s.get("/health").status, 200, "and the server is still there")


def routes(s):
    error(s.get("/v1/nothing"), 404, "no route", INVALID, words="/v1/nothing")
    error(s.post("/v1/files", {}), 404, "no route, POST", INVALID)
    for method, path, allow in ("GET", CHAT, "POST"), ("GET", EMBEDDINGS, "POST"), ("DELETE", COMPLETIONS, "POST"), ("PUT", RESPONSES, "POST"), \
            ("POST", "/v1/models", "GET"), ("POST", "/health", "GET"), ("DELETE", "/v1/models/demo", "GET"), ("GET", "/admin/models/unload", "POST"), \
            ("BREW", "/metrics", "GET"):
        r = s.call(method, path)
        error(r, 405, "%s %s" % (method, path), INVALID)
        check(allow in (r.headers["Allow"] or "").split(", "), "%s %s: Allow" % (method, path), r.headers["Allow"])
    error(s.get("/admin/models", {"Origin": "https://page.example"}), 403, "administration from a page", "permission_error")
    for path, ask in (CHAT, body()), (COMPLETIONS, {"prompt": "a"}), (RESPONSES, {"input": "a"}), (EMBEDDINGS, {"input": "a"}), ("/tokenize", {"content": "a"}):
        e = error(s.post(path, dict(ask, model="gpt-none")), 404, "%s: unknown model" % path, None, "model_not_found", "model", "gpt-none")
        check("demo" in e["message"] and "long" in e["message"], "%s: those that exist are named" % path, e["message"])
    e = error(s.get("/v1/models/gpt-none"), 404, "GET of an unknown model", None, "model_not_found")
    check("demo" in e["message"], "GET of an unknown model: those that exist are named", e["message"])
    anthropic_error(s.post(MESSAGES, {"model": "gpt-none", "max_tokens": 2, "messages": HI}), 404, "not_found_error", "messages: unknown model")
    error(s.post("/admin/models/unload", {"name": "gpt-none"}), 404, "unload of an unknown model", None, "model_not_found")


# --- HTTP ---------------------------------------------------------------------------------------------

def http(s):
    """s takes bodies of 64 KiB."""
    post = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n"
    raw_error(s, post + b"Content-Length: 70000\r\n\r\n", 413, "a body too large", "request_too_large")
    raw_error(s, post + b"Transfer-Encoding: chunked\r\n\r\n11171\r\n" + b"a" * 70001, 413, "a body too large, in chunks", "request_too_large")
    raw_error(s, b"GET /health HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n" + b"X-A: %s\r\n" % (b"b" * 8000) * 9 + b"\r\n", 431, "a head too large")
    raw_error(s, b"GET /health HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n" + b"X-A: b\r\n" * 300 + b"\r\n", 431, "too many header lines")
    raw_error(s, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414, "a target too long")
    for status, name, data in ((400, "no Host", b"GET / HTTP/1.1\r\nAccept: */*\r\n\r\n"), (400, "two lengths", post + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n"),
                               (400, "length and chunks", post + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n"),
                               (400, "a bad chunk", post + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n"), (400, "no HTTP", b"\x16\x03\x01\x02\x00\r\n\r\n"),
                               (400, "a folded line", b"GET / HTTP/1.1\r\nHost: x\r\nAccept: a\r\n b\r\n\r\n"), (400, "a space in a name", b"GET / HTTP/1.1\r\nHost: x\r\nAccept : a\r\n\r\n"),
                               (400, "a bare line feed", b"GET / HTTP/1.1\r\nHost: x\r\nAccept: a\n\r\n"),
                               (400, "a dot segment", b"GET /v1/../admin HTTP/1.1\r\nHost: x\r\n\r\n"), (501, "an unknown coding", post + b"Transfer-Encoding: gzip, chunked\r\n\r\n"),
                               (417, "an unknown expectation", post + b"Expect: gold\r\nContent-Length: 1\r\n\r\n"), (505, "HTTP/2", b"GET / HTTP/2.0\r\nHost: x\r\n\r\n")):
        raw_error(s, data, status, name)
    for path in "/v1/chat/completions", "/v1/nothing":
        with s.connect() as c:                  # the client waits for 100, and gets the refusal instead
            c.sendall(("POST %s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 99999\r\n\r\n" % path).encode())
            check(re.match(rb"HTTP/1\.1 (413|404) ", c.recv(4096)), "%s: refused instead of 100 Continue" % path)
    equal(s.post(CHAT, json.dumps(body()).encode(), {"Content-Type": "text/plain"}).status, 200, "another content type is taken")


def too_slow(s):
    """408; the time is fixed (15 s for a head, 30 s for a body that does not come), so both wait at once."""
    with s.connect(120) as head, s.connect(120) as part:
        head.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nAccept: */*\r\n")
        part.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAccept: */*\r\nContent-Length: 50\r\n\r\n{")
        for name, c in ("head", head), ("body", part):
            got = b""
            while True:
                more = c.recv(65536)
                if not more:
                    break
                got += more
            check(got.startswith(b"HTTP/1.1 408 ") and b'"error"' in got and b"Connection: close" in got, "a slow %s: 408, and closed" % name, got[:300])


# --- what the server cannot do now -----------------------------------------------------------------------

def queue_full(pantheon, long_model):
    with Server(pantheon, "-m", long_model, "--name", "long", "--max-concurrent", "1", "--queue", "1") as s:
        endless = {"messages": HI, "max_tokens": 20000, "ignore_eos": True}
        first = s.stream(CHAT, endless)
        first.first()
        waits, _ = s.connect(), s.wait_counts("long", running=1)
        data = json.dumps(endless).encode()
        waits.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(data) + data)
        s.wait_counts("long", running=1, queued=1)
        for path, ask in (CHAT, endless), (CHAT, dict(endless, stream=True)), (COMPLETIONS, {"prompt": "a"}), (RESPONSES, {"input": "a"}), (EMBEDDINGS, {"input": "a"}):
            r = s.post(path, ask)
            error(r, 429, "queue full, %s" % path, "rate_limit_error", "queue_full")
            retry_after(r, "queue full, %s" % path)
        r = s.post(MESSAGES, {"max_tokens": 2, "messages": HI})
        anthropic_error(r, 429, "rate_limit_error", "queue full, messages")
        retry_after(r, "queue full, messages")
        equal([s.post("/tokenize", {"content": "a"}).status, s.get("/health").status], [200, 200], "queue full: what needs no place is answered")
        first.close()
        waits.close()


def loading(pantheon, model, big):
    """Requests for a model that is being loaded: 503, with a time.  The race is run until it is won once."""
    with Server(pantheon, "-m", model, "--name", "demo") as s:
        won = None
        for i in range(20):
            name = "big%d" % i
            r = s.post("/admin/models/load", {"name": name, "path": big, "wait": False})
            check(r.status in (200, 202), "a load that is not waited for", r.body)
            r = s.post(CHAT, body(model=name))
            if r.status == 503:
                won = r
                break
            until(lambda: s.model(name)["state"] != "loading", "the model is loaded")
            s.post("/admin/models/unload", {"name": name})
        if won:
            error(won, 503, "a model that is loading", "unavailable_error", "loading", words="loading")
            retry_after(won, "a model that is loading")
            e = error(s.post("/admin/models/unload", {"name": name}), 503, "unload of a model that is loading", "unavailable_error") \
                if s.model(name)["state"] == "loading" else None
            check(e is None or e["message"], "unload of a model that is loading: said")
        else:
            checks.skip("a model that is loading: it always was faster than the next request")
        equal(s.get("/ready").status, 200, "another one is ready")
        until(lambda: s.model(name)["state"] != "loading", "it is loaded")
        for m in ("demo", name):
            s.post("/admin/models/unload", {"name": m})
        until(lambda: not s.get("/v1/models").json()["data"], "all models are gone")
        r = s.get("/ready")
        error(r, 503, "ready without a model", "unavailable_error")
        retry_after(r, "ready without a model")
        error(s.post(CHAT, body()), 404, "no model at all", None, "model_not_found", words="none")
        equal(s.get("/health").status, 200, "health without a model")


def memory(pantheon, model, long_model, big):
    """A load over the budget: 507; a conversation over it: an overflow that agents know."""
    for limit in range(12, 6, -1):              # where the small one fits and the large one does not
        with Server(pantheon, "-m", model, "--name", "demo", "--mem-limit", "%dM" % limit, "--prefix-cache", "1M") as s:
            r = s.post("/admin/models/load", {"name": "big", "path": big, "ctx_cap": 40960})
            if r.status != 507:
                continue
            e = error(r, 507, "a model over the budget", "model_over_budget", "insufficient_memory", words=r"\d+ bytes are needed")
            check("weights" in e["message"] and "available" in e["message"], "a model over the budget: the classes", e["message"])
            p = e.get("plan", {})
            check(p.get("short", 0) > 0 and p["least"] - p["available"] == p["short"] and p["weights"] > 0 and p["kv_per_token"] > 0, "a model over the budget: the sums", e)
            check(isinstance(e.get("consumers"), list), "a model over the budget: who has the memory", e)
            break
    else:
        check(False, "a model over the budget: none is")
    with Server(pantheon, "-m", model, "--name", "demo", "--mem-limit", "24M", "--prefix-cache", "1M") as s:
        s.post("/admin/models/load", {"name": "big", "path": long_model, "ctx_cap": 40960})
        equal(s.post(CHAT, body(model="demo")).status, 200, "the one that is there is not disturbed")
        s.post("/admin/models/unload", {"name": "big"})
    with Server(pantheon, "-m", long_model, "--name", "long", "--ctx-cap", "4096", "--prefix-cache", "1M") as s:
        plan = s.model("long")["plan"]
    limit = plan["total"] - plan["weights"] + 12000 * plan["kv_per_token"] + (8 << 20)
    with Server(pantheon, "-m", long_model, "--name", "long", "--mem-limit", str(limit), "--prefix-cache", "1M") as s:
        floor = s.model("long")["context_length"]
        equal(floor < 40960, True, "memory sets the context: %d" % floor)
        e = error(s.post(COMPLETIONS, {"prompt": [5] * (floor + 1), "max_tokens": 1}), 400, "over the memory's context", "context_over_budget", "context_length_exceeded")
        check(re.search(OVERFLOW[1], e.get("message", "")), "over the memory's context: the words", e)
        equal(s.post(COMPLETIONS, {"prompt": [5] * 20, "max_tokens": 1}).status, 200, "and a short one is answered")
    error_file = os.path.join(os.path.dirname(big), "broken.gguf")
    with open(error_file, "wb") as f:
        f.write(b"GGUF" + b"\xff" * 100)
    with Server(pantheon, "-m", model, "--name", "demo") as s:
        for name, path in ("no file", "/none.gguf"), ("a broken file", error_file), ("a folder", os.path.dirname(big)), ("a device", "/dev/zero"):
            r = s.post("/admin/models/load", {"name": "x", "path": path})
            error(r, 400, "load of %s" % name, INVALID)
            equal(r.headers["x-should-retry"], "false", "load of %s: clients do not try again" % name)
        error(s.post("/admin/models/load", {"name": "demo", "path": error_file}), 400, "load under a name that is taken", INVALID)
        error(s.post(CHAT, body(model="x")), 503, "a model that failed", "unavailable_error", words="could not be loaded")


# --- what other servers got wrong ------------------------------------------------------------------------

def known_bugs(s):
    def ok(name, **more):
        r = s.post(CHAT, body(**more))
        equal(r.status, 200, name)
        return r.json() if r.status == 200 else {}
    call = {"id": None, "type": "function", "function": {"name": "f", "arguments": "{\"a\":1}"}}
    ok("null ids in the history", messages=HI + [{"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "tool_call_id": None, "content": "2"}])
    ok("a developer", messages=[{"role": "developer", "content": "Be brief."}] + HI)
    ok("parts for a system", messages=[{"role": "system", "content": [{"type": "text", "text": "Be brief."}]}] + HI)
    ok("parts for a tool", messages=HI + [{"role": "assistant", "tool_calls": [dict(call, id="c")]},
                                          {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "2"}]}])
    for effort in "none", "minimal", "low", "medium", "high", "xhigh":
        ok("reasoning_effort %s" % effort, reasoning_effort=effort)
    ok("stream_options without a stream", stream=False, stream_options={"include_usage": True})
    ok("a prefill", messages=HI + [{"role": "assistant", "content": "Well"}], chat_template_kwargs={"enable_thinking": True})
    ok("an empty assistant at the end", messages=HI + [{"role": "assistant", "content": ""}])
    ok("null for everything", model=None, n=None, stop=None, tools=None, tool_choice=None, response_format=None, logit_bias=None, seed=None, stream=None,
       top_p=None, user=None, max_completion_tokens=None, stream_options=None, parallel_tool_calls=None)
    equal(s.post(CHAT + "?api-version=2024-10-21", body()).status, 200, "a query")
    r = ok("cache_control", messages=[{"role": "user", "content": [{"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}],
                                       "cache_control": {"type": "ephemeral"}}])
    m = r["choices"][0]["message"]
    check("refusal" in m and m["refusal"] is None and "logprobs" in r["choices"][0], "refusal and logprobs are there, and null", r)
    check("tool_calls" not in m, "no tool_calls when there are none", m)
    # streams: whatever the model calls, deltas keep their form
    for name, choice in ("named", {"type": "function", "function": {"name": "f"}}), ("required", "required"):
        st = s.stream(CHAT, body(tools=[TOOL], tool_choice=choice, max_tokens=200, stream_options={"include_usage": True}))
        events = list(st.events())
        check(st.done and all(isinstance(e["choices"], list) for e in events), "%s: choices in every chunk" % name)
        check(all(isinstance(c.get("delta"), dict) for e in events for c in e["choices"]), "%s: a delta in every choice" % name)
        check(events[0]["choices"][0]["delta"].get("content", 0) in ("", None) and events[0]["choices"][0]["delta"].get("role") == "assistant", "%s: the first chunk" % name)
        ends = [c["finish_reason"] for e in events for c in e["choices"] if c.get("finish_reason")]
        check(len(ends) == 1 and ends[0] in ("tool_calls", "length", "stop"), "%s: one finish_reason, of the known ones" % name, ends)
        pieces = [[p for p in c["delta"].get("tool_calls", [])] for e in events for c in e["choices"]]
        check(all(len({p["index"] for p in ps}) == len(ps) for ps in pieces), "%s: an index once in a chunk" % name)
        flat = [p for ps in pieces for p in ps]
        check(flat and all(isinstance(p.get("index"), int) and isinstance(p.get("function"), dict) for p in flat), "%s: index and function in every piece" % name, flat[:3])
        seen = set()
        for p in flat:
            if p["index"] not in seen:
                seen.add(p["index"])
                check(p.get("id") and p.get("type") == "function" and p["function"].get("name") == "f" and p["function"].get("arguments") == "",
                      "%s: id, type and name begin a call" % name, p)
            else:
                check(not {"id", "type"} & set(p) and set(p["function"]) == {"arguments"}, "%s: and are not said again" % name, p)
        check(events[-1]["choices"] == [] and events[-1]["usage"]["completion_tokens"] > 0, "%s: usage at the end" % name, events[-1])
        if ends == ["tool_calls"]:
            arguments = "".join(p["function"].get("arguments", "") for p in flat if p["index"] == 0)
            check(isinstance(json.loads(arguments).get("a"), int), "%s: the arguments are of the schema" % name, arguments)
    choice = {"type": "object", "properties": {"v": {"anyOf": [{"type": "string", "enum": ["1"]}, {"const": "true"}]}}, "required": ["v"], "additionalProperties": False}
    r = ok("anyOf of texts", max_tokens=60, response_format={"type": "json_schema", "json_schema": {"name": "s", "strict": True, "schema": choice}})
    if r["choices"][0]["finish_reason"] == "stop":
        check(json.loads(r["choices"][0]["message"]["content"])["v"] in ("1", "true"), "anyOf of texts: a text", r["choices"][0]["message"])


def main():
    pantheon = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/pantheon")
    model = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    if not os.access(pantheon, os.X_OK) or not os.path.exists(model):
        checks.skip("%s or %s is not there" % (pantheon, model))
        return checks.end()
    with tempfile.TemporaryDirectory() as tmp:
        long_model, big = os.path.join(tmp, "long.gguf"), os.path.join(tmp, "big.gguf")
        for out, flags in (long_model, ("--shape", "tiny", "--ctx", "40960")), (big, ("--shape", "tiny", "--vocab", "100000", "--type", "F32")):
            subprocess.run([pantheon, "synth", out, "--seed", "1", "-q", *flags], check=True, env=clean_env())
        run = checks.section
        with Server(pantheon, "-m", model, "--name", "demo", "--max-body", "64K") as s:
            for part in bodies, fields, taken, empty_prompt, overflow, http, known_bugs, too_slow:
                run(part, s)
            check(s.p.poll() is None, "the server has survived all of that")
        with Server(pantheon, "-m", model, "--name", "demo", "-m", long_model, "--name", "long") as s:
            run(routes, s)
        run(keys, pantheon, model, tmp)
        run(queue_full, pantheon, long_model)
        run(loading, pantheon, model, big)
        run(memory, pantheon, model, long_model, big)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
