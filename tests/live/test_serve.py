#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_serve.py - `pantheon serve` as clients meet it: sockets, framing, queues, signals, models that come and go.

    python3 tests/live/test_serve.py build/pantheon [MODEL]

Run from the repository root.  Needs Python's standard library alone.  The demo model answers what is about
text; what has to be under way for a while is asked of a synthetic model with a long context.
"""
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, content, threads, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

FOX = "Tell me a story about a fox."
LONG = {"model": "long", "messages": [{"role": "user", "content": "Go on."}], "temperature": 0, "max_tokens": 30000, "ignore_eos": True}


def error_of(reply, status, name, **members):
    """An error with OpenAI's four keys; members: what they must be."""
    equal(reply.status, status, "%s: status" % name)
    try:
        e = reply.error()
    except ValueError:
        e = {}
    check(set(e) >= {"message", "type", "param", "code"}, "%s: message, type, param and code" % name, reply.body)
    for key, value in members.items():
        equal(e.get(key), value, "%s: %s" % (name, key))
    return e


# --- starting ----------------------------------------------------------------------------------------

def start_lines(pantheon, model):
    with Server(pantheon, "-m", model) as s:
        check(re.match(r"backend=[a-z]+ build=\S+ accelerator=\S+$", s.lines[0]), "first line", s.lines[0])
        check(re.match(r"dies: [0-9]+(,[0-9]+)*$", s.lines[1]), "second line", s.lines[1])
        check(re.match(r"http://127\.0\.0\.1:\d+$", s.where), "ready line", s.where)
        equal(s.get("/health").json(), {"status": "ok"}, "health")
        equal(s.get("/ready").status, 200, "ready")
        root = s.get("/").json()
        check({"backend", "build", "uptime_seconds"} <= set(root), "the root tells what runs", root)
        name = os.path.basename(model)[:-5]
        for path in "/v1/models", "/models":
            m = s.get(path).json()
            equal([m["object"], [x["id"] for x in m["data"]]], ["list", [name]], "%s: the file's name" % path)
            check({"state", "context_length", "max_model_len", "floor_context", "kv_type", "residency", "replicas", "meta"} <= set(m["data"][0]),
                  "%s: what agents look for" % path, m)
        equal(s.get("/v1/models/" + name).json()["id"], name, "one model")
        error_of(s.get("/v1/models/none"), 404, "a model that is not there", code="model_not_found")
        check(s.get("/metrics").headers["Content-Type"].startswith("text/plain; version=0.0.4"), "metrics: content type")
        equal(s.stop(), 0, "SIGTERM without requests: exit code")
        check(s.find(r"^stopping: "), "the log says that it stops")


def refused(pantheon, model, name, word, code, *args, env=None):
    p = subprocess.run([pantheon, "serve"] + list(args), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=env or clean_env())
    err = p.stderr.decode()
    equal(p.returncode, code, "%s: exit code" % name)
    check(word in err and err.count("\n") == 1, "%s: one line that names %s" % (name, word), err)


def start_errors(pantheon, model, tmp):
    m = ["-m", model, "--port", "0"]
    refused(pantheon, model, "no model", "--model", 2)
    refused(pantheon, model, "unknown flag", "--frobnicate", 2, *m, "--frobnicate")
    refused(pantheon, model, "port", "--port", 2, "-m", model, "--port", "70000")
    refused(pantheon, model, "queue", "--queue", 2, *m, "--queue", "many")
    refused(pantheon, model, "time", "--drain-timeout", 2, *m, "--drain-timeout", "soon")
    refused(pantheon, model, "metrics", "--metrics", 2, *m, "--metrics", "all")
    refused(pantheon, model, "name before model", "--name", 2, "--name", "x", *m)
    refused(pantheon, model, "environment", "PN_QUEUE", 2, *m, env=clean_env(PN_QUEUE="many"))
    refused(pantheon, model, "unknown variable", "PN_FROB", 2, *m, env=clean_env(PN_FROB="1"))
    refused(pantheon, model, "no file", "none.gguf", 1, "-m", "none.gguf", "--port", "0")
    refused(pantheon, model, "no key file", "none.keys", 1, *m, "--api-key-file", "none.keys")
    refused(pantheon, model, "no such die", "die", 2, *m, "--dies", "3")
    empty = os.path.join(tmp, "empty.keys")
    with open(empty, "w") as f:
        f.write("# none\n")
    refused(pantheon, model, "empty key file", "key", 2, *m, "--api-key-file", empty)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        refused(pantheon, model, "port taken", port, 1, "-m", model, "--port", port)
    p = subprocess.run([pantheon, "serve", "-m", model, "--check"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=clean_env())
    check(p.returncode == 0 and b"verdict: fits" in p.stdout, "--check prints the plan", p.stdout)


def config_file(pantheon, model, tmp):
    path = os.path.join(tmp, "serve.conf")
    with open(path, "w") as f:
        f.write("# two models\nport = 0\nqueue = 3\nlog = json\nmax-concurrent = 2\n\n[model one]\nmodel = %s\nalias = eins\n"
                "[model two]\nmodel = %s\nctx-cap = 512\n" % (model, model))
    with Server(pantheon, "--config", path, port=False) as s:
        equal([m["id"] for m in s.get("/v1/models").json()["data"]], ["one", "two"], "config: both models")
        two = s.model("two")
        equal([two["context_length"], two["max_concurrent"]], [512, 2], "config: what is for one, what is for all")
        equal(s.post("/v1/chat/completions", chat("Hi", model="eins", max_tokens=2)).json()["model"], "eins", "config: an alias is echoed")
        entry = until(lambda: next((json.loads(x) for x in s.lines if x.startswith("{") and "request" in x and "eins" not in x and "chat" in x), None),
                      "a JSON line for the request")
        equal(entry["status"], 200, "config: the log in JSON")
        e = error_of(s.post("/v1/chat/completions", chat("Hi", model="three")), 404, "unknown model of two", code="model_not_found", param="model")
        check("one" in e["message"] and "two" in e["message"], "unknown model: those that exist are named", e["message"])
        equal(s.stop(), 0, "config: exit code")
    with Server(pantheon, "--config", path, "--log", "text", port=False, env=clean_env(PN_QUEUE="5")) as s:
        check(s.find(r"^model one: "), "a flag wins over the file")
    for name, text, word in ("unknown key", "frob = 1\n", "frob"), ("bad value", "port = x\n", "port"), ("no value", "[model a]\nmodel\n", ":2"), \
            ("no file in a section", "[model a]\nctx-cap = 5\n", "a"), ("server key in a section", "[model a]\nmodel = x\nport = 0\n", "port"):
        with open(path, "w") as f:
            f.write(text)
        refused(pantheon, model, "config: " + name, word, 2, "--config", path)


def unix_socket(pantheon, model, tmp):
    path = os.path.join(tmp, "sock")
    with Server(pantheon, "-m", model, "--socket", path, port=False) as s:
        check(path in s.where, "unix socket: the ready line names it", s.where)
        c = socket.socket(socket.AF_UNIX)
        c.settimeout(60)
        c.connect(path)
        c.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\nGET /admin/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        data = read_all(c)
        equal(data.count(b"HTTP/1.1 200 OK"), 2, "unix socket: two answers, the administrator's too")
        equal(s.stop(), 0, "unix socket: exit code")
        check(not os.path.exists(path), "unix socket: removed in the end")


# --- HTTP --------------------------------------------------------------------------------------------

def read_all(sock):
    data = b""
    while True:
        more = sock.recv(65536)
        if not more:
            return data
        data += more


def read_until(sock, mark):
    data = b""
    while mark not in data:
        more = sock.recv(65536)
        if not more:
            raise AssertionError("the connection ended before %r: %r" % (mark, data[-300:]))
        data += more
    return data


def raw(s, data):
    """What a connection answers to these bytes until it is closed."""
    with s.connect() as c:
        c.sendall(data)
        return read_all(c)


def post_bytes(body, *fields, path="/v1/chat/completions"):
    head = ["POST %s HTTP/1.1" % path, "Host: x", "Content-Type: application/json"] + list(fields)
    return "\r\n".join(head + ["", ""]).encode() + body


def status_of(data):
    m = re.match(rb"HTTP/1\.1 (\d+) ", data)
    return int(m.group(1)) if m else data[:80]


def http_keep_alive(s):
    import http.client
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60)
    c.connect()
    sock = c.sock
    for path in "/health", "/v1/models", "/none", "/health":
        c.request("GET", path)
        c.getresponse().read()
    for method, path in ("HEAD", "/health"), ("HEAD", "/v1/models"), ("HEAD", "/metrics"):
        c.request(method, path)
        r = c.getresponse()
        check(r.status == 200 and int(r.headers["Content-Length"]) > 0 and r.read() == b"", "HEAD %s: the length and no body" % path, r.status)
    c.request("POST", "/v1/chat/completions", json.dumps(chat(FOX, max_tokens=3, stream=True)))
    check(c.getresponse().read().endswith(b"data: [DONE]\n\n"), "keep-alive: a stream comes to its end")
    c.request("GET", "/health")
    equal(c.getresponse().read(), b'{"status":"ok"}', "keep-alive: after a stream")
    check(c.sock is sock, "keep-alive: one connection for all of that")
    c.close()
    answer = raw(s, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    check(b"Connection: close" in answer and answer.endswith(b'{"status":"ok"}'), "Connection: close", answer)
    answer = raw(s, b"GET /health HTTP/1.0\r\n\r\n")
    check(answer.startswith(b"HTTP/1.1 200") and answer.endswith(b'{"status":"ok"}'), "HTTP/1.0 closes", answer)
    answer = raw(s, post_bytes(b"", "Content-Length: 0").replace(b"HTTP/1.1", b"HTTP/1.0"))
    equal(status_of(answer), 400, "HTTP/1.0 with an empty body")
    body = json.dumps(chat(FOX, max_tokens=3, stream=True)).encode()
    answer = raw(s, post_bytes(body, "Content-Length: %d" % len(body)).replace(b"HTTP/1.1", b"HTTP/1.0"))
    check(answer.endswith(b"data: [DONE]\n\n") and b"chunked" not in answer, "HTTP/1.0: a stream without chunks", answer[-100:])


def http_pipelining(s):
    body = json.dumps(chat("Hi", max_tokens=3)).encode()
    stream = json.dumps(chat("Hi", max_tokens=3, stream=True)).encode()
    answer = raw(s, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" + post_bytes(body, "Content-Length: %d" % len(body)) +
                 post_bytes(stream, "Content-Length: %d" % len(stream)) + b"GET /none HTTP/1.1\r\nHost: x\r\n\r\n" +
                 b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    marks = [b'"status":"ok"', b'"chat.completion"', b"data: [DONE]", b"HTTP/1.1 404", b'"object":"list"']
    places = [answer.find(m) for m in marks]
    check(-1 not in places and places == sorted(places), "pipelining: five answers in order", places)
    with s.connect() as c:          # byte by byte
        for b in b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n":
            c.sendall(bytes([b]))
        equal(status_of(read_all(c)), 200, "a request byte by byte")


def http_bodies(s):
    whole = json.dumps(chat(FOX, max_tokens=4)).encode()
    want = content(s.post("/v1/chat/completions", whole))
    chunks = b"".join(b"%x;name=value\r\n%s\r\n" % (len(whole[i:i + 7]), whole[i:i + 7]) for i in range(0, len(whole), 7))
    answer = raw(s, post_bytes(chunks + b"0\r\nX-Trailer: 1\r\n\r\n", "Transfer-Encoding: chunked", "Connection: close"))
    check(status_of(answer) == 200 and json.dumps(want)[1:-1].encode() in answer, "a chunked body", answer)
    for name, path, expect in ("Expect: 100-continue", "/v1/chat/completions", b"HTTP/1.1 100 Continue\r\n\r\n"), ("Expect on no route", "/none", b""):
        with s.connect() as c:
            c.sendall(post_bytes(b"", "Expect: 100-continue", "Connection: close", "Content-Length: %d" % len(whole), path=path))
            if expect:
                equal(read_until(c, b"\r\n\r\n"), expect, name)
                c.sendall(whole)
                equal(status_of(read_all(c)), 200, "%s: the answer" % name)
            else:
                equal(status_of(read_all(c)), 404, "%s: refused before a body is sent" % name)
    big = b'{"x":"' + b"a" * 70000 + b'"}'
    answer = raw(s, post_bytes(big[:100], "Content-Length: %d" % len(big)))
    check(status_of(answer) == 413 and b"request_too_large" in answer, "413 by Content-Length, before the body is there", answer)
    answer = raw(s, post_bytes(b"%x\r\n%s\r\n0\r\n\r\n" % (len(big), big), "Transfer-Encoding: chunked"))
    check(status_of(answer) == 413 and b"request_too_large" in answer, "413 by chunks", answer)
    equal(s.post("/v1/chat/completions", whole, {"Content-Type": "text/plain"}).status, 200, "another content type is taken")
    equal(s.post("/v1/chat/completions?api-version=1", whole).status, 200, "a query is ignored")
    equal(s.post("/chat/completions", whole).status, 200, "the route without /v1")


def http_faults(s):
    for name, status, data in (
            ("two framings", 400, post_bytes(b"0\r\n\r\n", "Transfer-Encoding: chunked", "Content-Length: 5")),
            ("two lengths", 400, post_bytes(b"{}", "Content-Length: 2", "Content-Length: 3")),
            ("a bad length", 400, post_bytes(b"", "Content-Length: x")),
            ("a bad chunk", 400, post_bytes(b"zz\r\n", "Transfer-Encoding: chunked")),
            ("no Host", 400, b"GET /health HTTP/1.1\r\n\r\n"),
            ("HTTP/2", 505, b"GET /health HTTP/2.0\r\nHost: x\r\n\r\n"),
            ("no HTTP", 400, b"hello\r\n\r\n"),
            ("a long line", 414, b"GET /" + b"a" * 20000 + b" HTTP/1.1\r\nHost: x\r\n\r\n"),
            ("a long head", 431, b"GET /health HTTP/1.1\r\nHost: x\r\n" + b"X-A: %s\r\n" % (b"b" * 9000) * 9 + b"\r\n")):
        answer = raw(s, data)
        equal(status_of(answer), status, name)
        check(b"Connection: close" in answer and b'"error"' in answer, "%s: said, and closed" % name, answer)
    error_of(s.get("/v1/none"), 404, "no route", type="invalid_request_error")
    for method, path, allow in ("GET", "/v1/chat/completions", "POST"), ("POST", "/v1/models", "GET"), ("DELETE", "/health", "GET"), \
            ("GET", "/admin/models/load", "POST"):
        r = s.call(method, path)
        error_of(r, 405, "%s %s" % (method, path))
        check(allow in (r.headers["Allow"] or ""), "%s %s: Allow" % (method, path), r.headers["Allow"])
    for name, body in ("not JSON", b"{"), ("no body", b""), ("an array", b"[]"), ("two values", b"{}{}"), ("deep", b"[" * 200 + b"]" * 200):
        error_of(s.post("/v1/chat/completions", body), 400, "bad JSON, " + name, type="invalid_request_error")
    r = s.get("/health", {"x-request-id": "my-id-7"})
    equal(r.headers["x-request-id"], "my-id-7", "a request's id is echoed")
    r = s.get("/health", {"x-request-id": "no id " * 20})
    check(re.match(r"^[A-Za-z0-9]{24}$", r.headers["x-request-id"] or ""), "a strange id is replaced", r.headers["x-request-id"])
    equal(s.get("/health").status, 200, "the server lives on")


def http_fields(s):
    """Fields of a request: wrong ones are named, unknown ones are listed, null is absent."""
    for name, param, fields in (
            ("no messages", "messages", {"messages": None}),
            ("temperature of the wrong type", "temperature", {"temperature": "hot"}),
            ("negative temperature", "temperature", {"temperature": -1}),
            ("top_logprobs alone", "top_logprobs", {"top_logprobs": 3}),
            ("n too large", "n", {"n": 1000}),
            ("unknown format", "response_format.type", {"response_format": {"type": "xml"}}),
            ("required without tools", "tool_choice", {"tool_choice": "required"}),
            ("max_tokens 0", "max_tokens", {"max_tokens": 0})):
        e = error_of(s.post("/v1/chat/completions", chat("Hi", **fields)), 400, name, type="invalid_request_error")
        check((e.get("param") or "").startswith(param), "%s: param" % name, e)
    r = s.post("/v1/chat/completions", chat("Hi", max_tokens=2, frobnicate=1, top_p=None, user="me")).json()
    check("frobnicate" in r["pantheon"]["ignored_params"], "an unknown field is listed", r["pantheon"])
    e = error_of(s.post("/v1/chat/completions", chat("fox " * 3000)), 400, "too long", code="context_length_exceeded", type="context_over_budget")
    check(re.search(r"maximum context length is \d+ tokens", e.get("message", "")), "too long: the words agents look for", e)
    error_of(s.stream("/v1/chat/completions", chat("fox " * 3000)).r and s.post("/v1/chat/completions", chat("fox " * 3000, stream=True)), 400,
             "too long, as a stream: an error with a status", code="context_length_exceeded")


def http_cors(pantheon, model):
    ask = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization, content-type"}
    with Server(pantheon, "-m", model, "--cors", "https://page.example") as s:
        r = s.call("OPTIONS", "/v1/chat/completions", None, ask)
        check(r.status in (200, 204) and r.body == b"", "preflight: status", r.status)
        equal(r.headers["Access-Control-Allow-Origin"], "https://page.example", "preflight: origin")
        check("POST" in (r.headers["Access-Control-Allow-Methods"] or ""), "preflight: methods")
        check("authorization" in (r.headers["Access-Control-Allow-Headers"] or "").lower(), "preflight: headers")
        check(r.headers["Access-Control-Max-Age"], "preflight: age")
        r = s.call("OPTIONS", "/v1/chat/completions", None, dict(ask, Origin="https://other.example"))
        equal(r.headers["Access-Control-Allow-Origin"], None, "preflight of a stranger")
        r = s.get("/v1/models", {"Origin": "https://page.example"})
        equal(r.headers["Access-Control-Allow-Origin"], "https://page.example", "a simple request")
        r = s.call("POST", "/v1/chat/completions", b"{", {"Origin": "https://page.example"})
        equal([r.status, r.headers["Access-Control-Allow-Origin"]], [400, "https://page.example"], "an error a page can read")
        st = s.stream("/v1/chat/completions", chat("Hi", max_tokens=2), {"Origin": "https://page.example"})
        equal(st.r.headers["Access-Control-Allow-Origin"], "https://page.example", "a stream a page can read")
        st.close()
        equal(s.get("/admin/models", {"Origin": "https://page.example"}).status, 403, "a page is no administrator")


# --- streams -----------------------------------------------------------------------------------------

def sse(s):
    solo = s.post("/v1/chat/completions", chat(FOX, max_tokens=20)).json()
    st = s.stream("/v1/chat/completions", chat(FOX, max_tokens=20, stream_options={"include_usage": True}))
    h = st.r.headers
    check(h["Content-Type"].startswith("text/event-stream"), "stream: content type", h["Content-Type"])
    equal([h["Cache-Control"], h["X-Accel-Buffering"]], ["no-cache", "no"], "stream: proxies keep out")
    events = list(st.events())
    check(st.done and st.whole, "stream: [DONE] and an orderly end")
    equal(len({(e["id"], e["created"], e["model"], e["object"]) for e in events}), 1, "stream: one id, time, model and object")
    check(all(isinstance(e["choices"], list) for e in events), "stream: choices is always an array")
    chunks = [e["choices"][0] for e in events if e["choices"]]
    equal(chunks[0]["delta"], {"role": "assistant", "content": ""}, "stream: the role comes first")
    check(not any("role" in c["delta"] for c in chunks[1:]), "stream: and once")
    equal("".join(c["delta"].get("content", "") for c in chunks), solo["choices"][0]["message"]["content"], "stream: the text of the whole answer")
    equal([c["finish_reason"] for c in chunks if c["finish_reason"]], ["length"], "stream: one reason to finish")
    equal([chunks[-1]["delta"], chunks[-1]["finish_reason"]], [{}, "length"], "stream: in the last chunk")
    equal([events[-1]["choices"], events[-1]["usage"]["completion_tokens"]], [[], 20], "stream: usage at the end")
    equal(events[-1]["usage"]["total_tokens"], solo["usage"]["total_tokens"], "stream: the same usage")
    st = s.stream("/v1/completions", {"model": "demo", "prompt": "Once upon", "max_tokens": 8, "temperature": 0})
    events = list(st.events())
    whole = s.post("/v1/completions", {"model": "demo", "prompt": "Once upon", "max_tokens": 8, "temperature": 0}).json()
    equal("".join(e["choices"][0]["text"] for e in events if e["choices"]), whole["choices"][0]["text"], "stream of a completion")
    check(st.done, "stream of a completion: [DONE]")
    st = s.stream("/v1/chat/completions", chat(FOX, n=3, temperature=1, seed=5, max_tokens=12))
    texts, ends = {}, []
    for e in st.events():
        for c in e["choices"]:
            texts[c["index"]] = texts.get(c["index"], "") + (c["delta"].get("content") or "")
            ends += [c["index"]] if c["finish_reason"] else []
    whole = s.post("/v1/chat/completions", chat(FOX, n=3, temperature=1, seed=5, max_tokens=12)).json()
    equal([texts[i] for i in range(3)], [c["message"]["content"] for c in whole["choices"]], "stream of three choices: each one's text")
    equal(sorted(ends), [0, 1, 2], "stream of three choices: each ends once")


def together(s):
    """Eight streams at once: each says what it says alone."""
    asks = [chat(p, max_tokens=60) for p in (FOX, "Tell me a story about a robot.", "Count from 3 to 12.", "What is the capital of France?")]
    asks += [dict(a, temperature=0.9, seed=100 + i) for i, a in enumerate(asks)]
    alone = [content(s.post("/v1/chat/completions", a)) for a in asks]
    seen, over = [0], threading.Event()

    def watch():
        while not over.is_set():
            seen[0] = max(seen[0], s.model("demo")["running"])
    w = threading.Thread(target=watch, daemon=True)
    w.start()
    for turn in range(2):
        texts = threads(lambda a: s.stream("/v1/chat/completions", a).text(), asks)
        for i, (a, t) in enumerate(zip(alone, texts)):
            equal(t, a, "eight at once, turn %d, stream %d: its solo text" % (turn, i))
    over.set()
    w.join()
    check(seen[0] >= 2, "eight at once: side by side", seen[0])
    whole = threads(lambda a: content(s.post("/v1/chat/completions", a)), asks)
    equal(whole, alone, "eight at once, not streamed")


# --- queue and aborts --------------------------------------------------------------------------------

def queue_full(pantheon, long_model):
    with Server(pantheon, "-m", long_model, "--name", "long", "--max-concurrent", "1", "--queue", "1") as s:
        first = s.stream("/v1/chat/completions", LONG)
        first.first()
        s.wait_counts("long", running=1, queued=0)
        second = s.connect()
        body = json.dumps(dict(LONG, stream=True, max_tokens=5)).encode()
        second.sendall(post_bytes(body, "Content-Length: %d" % len(body), "Connection: close"))
        s.wait_counts("long", running=1, queued=1)
        r = s.post("/v1/chat/completions", LONG)
        error_of(r, 429, "queue full", type="rate_limit_error", code="queue_full")
        check(re.match(r"^[1-9]\d*$", r.headers["Retry-After"] or ""), "queue full: Retry-After", r.headers["Retry-After"])
        check(int(r.headers["retry-after-ms"] or 0) >= 1, "queue full: retry-after-ms")
        equal(s.get("/health").status, 200, "queue full: health")
        second.close()
        s.wait_counts("long", running=1, queued=0)
        check(True, "abort while queued: the place is free")
        third = s.connect()
        third.sendall(post_bytes(body, "Content-Length: %d" % len(body), "Connection: close"))
        s.wait_counts("long", running=1, queued=1)
        first.close()
        answer = read_all(third)
        check(answer.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), "abort while streaming: who waits is next", answer[-200:])
        s.wait_counts("long", running=0, queued=0)
        check(True, "abort while streaming: nobody runs")
        until(lambda: s.find(r" 499 "), "a line with 499 for who went away")
        check(True, "aborts are logged as 499")


def aborts(s):
    """Going away at any moment leaves nothing behind."""
    def one(i):
        if i % 4 == 0:                          # after some text
            st = s.stream("/v1/chat/completions", chat(FOX, max_tokens=400, ignore_eos=True))
            st.first()
            st.close()
        elif i % 4 == 1:                        # at once
            body = json.dumps(chat(FOX, max_tokens=400, ignore_eos=True, stream=i % 8 == 1)).encode()
            with s.connect() as c:
                c.sendall(post_bytes(body, "Content-Length: %d" % len(body)))
        elif i % 4 == 2:                        # in the middle of the body
            with s.connect() as c:
                c.sendall(post_bytes(b'{"model":', "Content-Length: 1000"))
        else:                                   # several choices
            st = s.stream("/v1/chat/completions", chat(FOX, n=4, max_tokens=400, ignore_eos=True))
            st.first()
            st.close()
    threads(lambda k: [one(i) for i in range(k, k + 8)], [0, 8, 16, 24])
    s.wait_counts("demo", running=0, queued=0)
    check(True, "32 aborts: nobody runs")
    a = s.post("/v1/chat/completions", chat(FOX, max_tokens=20))
    equal(a.status, 200, "32 aborts: the next one is answered")
    kv = s.get("/admin/models").json()["accounts"]["kv"]
    until(lambda: s.get("/admin/models").json()["accounts"]["kv"]["used"] == 0 or None, "keys and values are given back: %s" % kv)
    check(True, "32 aborts: no keys and values are left")


def slow_reader(pantheon, long_model, model):
    """Who does not read is not computed for, and others are not held up."""
    with Server(pantheon, "-m", model, "-m", long_model, "--name", "long") as s:
        lazy = s.connect()
        lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps(dict(LONG, stream=True)).encode()
        lazy.sendall(post_bytes(body, "Content-Length: %d" % len(body)))
        s.wait_counts("long", running=1)
        want = content(s.post("/v1/chat/completions", chat(FOX, max_tokens=30)))
        equal(s.stream("/v1/chat/completions", chat(FOX, max_tokens=30)).text(), want, "beside a reader that does not read")
        equal(s.model("long")["running"], 1, "who does not read keeps its place")
        lazy.close()
        s.wait_counts("long", running=0)
        check(True, "and loses it when it goes")


# --- models ------------------------------------------------------------------------------------------

def models(pantheon, model, long_model):
    with Server(pantheon, "-m", model, "-m", long_model, "--name", "long") as s:
        replies = threads(lambda _: s.post("/admin/models/load", {"name": "late", "path": model}), range(16))
        equal([r.status for r in replies], [200] * 16, "sixteen loads at once: all are told")
        equal({r.json()["state"] for r in replies}, {"ready"}, "sixteen loads at once: ready")
        equal(sum(x.startswith("model late: loading") for x in s.lines), 1, "sixteen loads at once: one load")
        equal(s.post("/v1/chat/completions", chat("Hi", model="late", max_tokens=2)).json()["model"], "late", "the new model answers")
        r = s.post("/admin/models/load", {"name": "later", "path": model, "ctx_cap": 256, "max_concurrent": 3, "wait": False})
        equal(r.status, 202, "a load that is not waited for")
        until(lambda: s.model("later")["state"] == "ready", "it becomes ready")
        equal([s.model("later")["context_length"], s.model("later")["max_concurrent"]], [256, 3], "with its limits")
        r = s.post("/admin/models/load", {"name": "late", "path": long_model})
        check(400 <= r.status < 500, "the name of another model", r.status)
        for name, key, body in ("no path", "path", {"name": "x"}), ("unknown key", "frob", {"name": "x", "path": model, "frob": 1}), \
                ("wrong type", "ctx_cap", {"name": "x", "path": model, "ctx_cap": "y"}), ("no file", "path", {"name": "x", "path": "/none.gguf"}):
            error_of(s.post("/admin/models/load", body), 400, "load, " + name, param=key)
        error_of(s.post("/admin/models/unload", {"name": "none"}), 404, "unload of none", code="model_not_found")

        st = s.stream("/v1/chat/completions", dict(chat(FOX, model="late", max_tokens=500, ignore_eos=True)))
        st.first()
        unloads = []
        t = threading.Thread(target=lambda: unloads.append(s.post("/admin/models/unload", {"name": "late"})), daemon=True)
        t.start()
        until(lambda: (s.model("late") or {"state": "gone"})["state"] in ("draining", "gone"), "it drains")
        late = s.model("late")
        r = s.post("/v1/chat/completions", chat("Hi", model="late"))
        check(r.status in (503, 404) and (r.status == 404 or r.headers["Retry-After"]), "a model that drains takes nobody", r.status)
        check(late is None or late["running"] == 1, "who runs goes on", late)
        st.text()
        check(st.done, "the running stream comes to its end")
        t.join(60)
        equal([r.status for r in unloads], [200], "unload: answered when drained")
        equal(s.model("late"), None, "unload: it is gone")
        error_of(s.post("/v1/chat/completions", chat("Hi", model="late")), 404, "unload: nobody of that name", code="model_not_found")
        equal(s.post("/admin/models/load", {"name": "late", "path": model}).status, 200, "and loaded again")
        pair = threads(lambda i: s.post("/admin/models/unload", {"name": "late"}).status, range(4))
        check(set(pair) <= {200, 404} and 200 in pair, "four unloads at once", pair)
        equal({m["id"] for m in s.get("/v1/models").json()["data"]}, {"demo", "long", "later"}, "the list is true: what failed is not in it")
        for path in "/admin/dies", "/admin/memory":
            equal(s.get(path).status, 200, path)
    with Server(pantheon, "-m", model) as s:
        equal(s.post("/v1/chat/completions", chat("Hi", model="gpt-4o", max_tokens=2)).json()["model"], "demo", "one model: any name is its")
        s.post("/admin/models/load", {"name": "x", "path": "/none.gguf"})
        equal(s.post("/v1/chat/completions", chat("Hi", model="gpt-4o", max_tokens=2)).status, 200, "one model beside one that failed")
        error_of(s.post("/v1/chat/completions", chat("Hi", model="x")), 503, "a model that failed")


def keys(pantheon, model, tmp):
    api, admin = os.path.join(tmp, "api.keys"), os.path.join(tmp, "admin.keys")
    with open(api, "w") as f:
        f.write("# people\nsecret-one\nsecret-two # the second\n")
    with open(admin, "w") as f:
        f.write("root-key\n")
    body = chat("Hi", max_tokens=2)
    with Server(pantheon, "-m", model, "--api-key-file", api) as s:
        r = s.post("/v1/chat/completions", body)
        error_of(r, 401, "no key", code="invalid_api_key")
        check(r.headers["WWW-Authenticate"], "no key: WWW-Authenticate")
        for name, fields, status in (
                ("bearer", {"Authorization": "Bearer secret-one"}, 200), ("bare", {"Authorization": "secret-two"}, 200),
                ("x-api-key", {"x-api-key": "secret-one"}, 200), ("api-key", {"api-key": "secret-two"}, 200),
                ("wrong", {"Authorization": "Bearer secret-three"}, 401), ("a prefix", {"Authorization": "Bearer secret"}, 401),
                ("empty", {"Authorization": "Bearer "}, 401)):
            equal(s.post("/v1/chat/completions", body, fields).status, status, "key, %s" % name)
        for path, status in ("/health", 200), ("/ready", 200), ("/v1/models", 401), ("/metrics", 401), ("/admin/models", 401):
            equal(s.get(path).status, status, "without a key, %s" % path)
        equal(s.call("OPTIONS", "/v1/models").status, 204, "without a key, OPTIONS")
        with s.connect() as c:      # the key is wrong: said before the body is sent
            c.sendall(post_bytes(b"", "Content-Length: 1000"))
            equal(status_of(read_all(c)), 401, "without a key, before the body")
    with Server(pantheon, "-m", model, "--api-key-file", api, "--admin-key-file", admin) as s:
        for name, key, status in ("a user's key", "secret-one", 401), ("an administrator's", "root-key", 200), ("none", "", 401):
            equal(s.get("/admin/models", {"Authorization": "Bearer " + key}).status, status, "admin keys, %s" % name)
        check(not any("secret" in x or "root-key" in x for x in s.lines), "no key in the log")


# --- the end -----------------------------------------------------------------------------------------

def drain(pantheon, model):
    with Server(pantheon, "-m", model) as s:
        want = s.post("/v1/chat/completions", chat(FOX, max_tokens=300, ignore_eos=True)).json()["choices"][0]["message"]["content"]
        idle = s.connect()
        st = s.stream("/v1/chat/completions", chat(FOX, max_tokens=300, ignore_eos=True))
        got = st.first()["choices"][0]["delta"]["content"]
        s.signal()
        m = s.wait_line(r"^stopping: (\d+) connections, (\d+) requests under way$")
        equal(m.group(2), "1", "SIGTERM: one request is under way")
        equal(idle.recv(10), b"", "SIGTERM: an idle connection is closed")
        idle.close()
        refused_ = False
        try:
            s.connect().close()
        except ConnectionRefusedError:
            refused_ = True
        check(refused_, "SIGTERM: nobody new is let in")
        got += st.text()
        check(st.done and st.whole, "SIGTERM: the running stream comes to its end")
        equal(got, want, "SIGTERM: with all of its text")
        st.close()
        equal(s.wait(), 0, "SIGTERM: exit code")


def stop_at_once(pantheon, long_model):
    for name, second in ("SIGTERM", signal.SIGTERM), ("SIGINT", signal.SIGINT):
        with Server(pantheon, "-m", long_model, "--name", "long", "--drain-timeout", "600s") as s:
            st = s.stream("/v1/chat/completions", LONG)
            st.first()
            s.signal(second)
            s.wait_line(r"^stopping: ")
            check(s.p.poll() is None, "a first %s waits for the stream" % name)
            s.signal(second)
            events = list(st.events())
            check("error" in events[-1] and not st.done, "a second %s: the stream ends with an error" % name, events[-1:])
            check(not any(c.get("finish_reason") for e in events if e.get("choices") for c in e["choices"]), "a second %s: no reason to finish" % name)
            st.close()
            equal(s.wait(20), 0, "a second %s: exit code" % name)
    with Server(pantheon, "-m", long_model, "--name", "long", "--drain-timeout", "200ms") as s:
        st = s.stream("/v1/chat/completions", LONG)
        st.first()
        s.signal()
        events = list(st.events())
        check("error" in events[-1], "the time to drain is over: an error", events[-1:])
        st.close()
        equal(s.wait(20), 0, "the time to drain is over: exit code")


def main():
    pantheon = sys.argv[1] if len(sys.argv) > 1 else "build/pantheon"
    model = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    pantheon = os.path.abspath(pantheon)
    if not os.access(pantheon, os.X_OK) or not os.path.exists(model):
        checks.skip("%s or %s is not there" % (pantheon, model))
        return checks.end()
    with tempfile.TemporaryDirectory() as tmp:
        long_model = os.path.join(tmp, "long.gguf")
        subprocess.run([pantheon, "synth", long_model, "--shape", "tiny", "--ctx", "32768", "--seed", "1", "-q"], check=True, env=clean_env())
        run = checks.section
        run(start_lines, pantheon, model)
        run(start_errors, pantheon, model, tmp)
        run(config_file, pantheon, model, tmp)
        run(unix_socket, pantheon, model, tmp)
        with Server(pantheon, "-m", model, "--max-body", "64K") as s:
            for part in http_keep_alive, http_pipelining, http_bodies, http_faults, http_fields, sse, together, aborts:
                run(part, s)
            check(s.p.poll() is None, "the server has survived all of that")
            equal(s.stop(), 0, "exit code after all of that")
        run(http_cors, pantheon, model)
        run(queue_full, pantheon, long_model)
        run(slow_reader, pantheon, long_model, model)
        run(models, pantheon, model, long_model)
        run(keys, pantheon, model, tmp)
        run(drain, pantheon, model)
        run(stop_at_once, pantheon, long_model)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
