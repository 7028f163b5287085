#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""The router in front of real servers of the demo model, and of ones that misbehave on purpose.

    python3 tests/live/test_router.py build/pantheon

Run from the repository root.  Everything is on loopback and in a temporary folder; conditions are polled for, with
deadlines, so a slow machine only makes it slower.
"""
import concurrent.futures
import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "build/pantheon"
MODEL = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
DEADLINE = 60.0
ENV = {k: v for k, v in os.environ.items() if not k.startswith("PN_")}

passed = failed = 0
procs = []


def check(ok, what):
    global passed, failed
    if ok:
        passed += 1
    else:
        failed += 1
        print("FAIL", what, flush=True)
    return bool(ok)


def poll(condition, what, deadline=DEADLINE):
    """Wait until the condition holds; its value."""
    end = time.monotonic() + deadline
    while True:
        try:
            value = condition()
        except (OSError, http.client.HTTPException, ValueError):
            value = None
        if value or time.monotonic() > end:
            break
        time.sleep(0.02)
    check(value, what)
    return value


# --- processes ----------------------------------------------------------------------------------


class Process:
    """A server or router: its log in a file, its address once it listens."""

    def __init__(self, name, *args):
        self.name, self.args = name, args
        self.path = os.path.join(tmp, name + ".log")
        self.start()

    def start(self):
        self.log = open(self.path, "w")
        self.p = subprocess.Popen([PROGRAM, *self.args], stdin=subprocess.DEVNULL, stdout=self.log, stderr=subprocess.STDOUT, env=ENV)
        procs.append(self.p)
        if not poll(lambda: "listening on " in self.text() or self.p.poll() is not None, self.name + " starts") or self.p.poll() is not None:
            print(self.text())
            raise SystemExit("0 passed, 1 failed")
        self.url = re.search(r"^listening on (.*)$", self.text(), re.M).group(1)

    def text(self):
        with open(self.path) as f:
            return f.read()

    def signal(self, sig):
        self.p.send_signal(sig)

    def kill(self):
        self.p.kill()
        self.p.wait()
        self.log.close()

    def end(self):
        """Stop and give the exit code."""
        if self.p.poll() is None:
            self.p.terminate()
        try:
            code = self.p.wait(DEADLINE)
        except subprocess.TimeoutExpired:
            self.kill()
            code = None
        self.log.close()
        return code


def serve(name, model="demo", *more):
    return Process(name, "serve", "--model", MODEL, "--name", model, "--threads", "1", *(more or ("--port", "0")))


def router(name, backends, *more):
    args = []
    for b in backends:
        args += ["--backend", b if isinstance(b, str) else b.url]
    return Process(name, "router", "--listen", "127.0.0.1:0", "--health-interval", "100ms", *args, *more)


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def connection(of):
    if of.url.startswith("unix:"):
        return UnixConnection(of.url[5:], DEADLINE)
    host, port = of.url.split("//")[1].split(":")
    return http.client.HTTPConnection(host, int(port), timeout=DEADLINE)


def call(of, method, path, body=None, headers=None):
    """Status, fields, body."""
    c = connection(of)
    try:
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        c.request(method, path, data, headers or {})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, r.read()
    finally:
        c.close()


def get(of, path):
    status, _, body = call(of, "GET", path)
    return json.loads(body) if status == 200 else None


def raw(of, data, deadline=DEADLINE):
    """A socket on which `data` has been sent."""
    host, port = of.url.split("//")[1].split(":")
    s = socket.create_connection((host, int(port)), timeout=deadline)
    s.sendall(data)
    return s


def read_all(s):
    out = []
    try:
        while chunk := s.recv(65536):
            out.append(chunk)
    except ConnectionResetError:
        pass
    s.close()
    return b"".join(out)


def chat(of, messages, headers=None, **more):
    body = {"model": "demo", "messages": messages, "max_tokens": 2, "temperature": 0, **more}
    return call(of, "POST", "/v1/chat/completions", body, headers)


def user(text):
    return {"role": "user", "content": text}


def where(r, request_id):
    """The backend that the router's log names for a request, and its tries."""
    def find():
        return re.search(r"^\S+ %s \S+ \S+ (\d+) \d+ms backend=(\S+) tries=(\d+)$" % re.escape(request_id), r.text(), re.M)
    m = poll(find, "the log tells of " + request_id)
    return (m.group(2), int(m.group(3))) if m else (None, 0)


def running(r):
    return {b["url"]: b["running"] for b in get(r, "/health")["backends"]}


def states(r):
    return {b["url"]: b["state"] for b in get(r, "/health")["backends"]}


def metric(r, name, **labels):
    text = call(r, "GET", "/metrics")[2].decode()
    total = 0
    for line in text.splitlines():
        m = re.match(r"pantheon_router_%s(?:\{(.*)\})? (\S+)$" % name, line)
        if m and all('%s="%s"' % kv in (m.group(1) or "") for kv in labels.items()):
            total += float(m.group(2))
    return total


class Stream:
    """An answer that is read event by event."""

    def __init__(self, of, tokens, text="Tell me a story", headers=None, path="/v1/chat/completions"):
        body = {"model": "demo", "messages": [user(text)], "max_tokens": tokens, "ignore_eos": True, "stream": True}
        self.c = connection(of)
        self.c.request("POST", path, json.dumps(body), headers or {})
        self.r = self.c.getresponse()
        self.status = self.r.status

    def event(self):
        """The next event's data; None: the end."""
        while line := self.r.readline():
            if line.startswith(b"data: "):
                return line[6:].strip().decode()
        return None

    def rest(self):
        out = []
        while (e := self.event()) is not None:
            out.append(e)
        return out

    def close(self):
        # An HTTPResponse holds the socket too.
        self.r.close()
        self.c.close()


# --- servers that misbehave ---------------------------------------------------------------------


class Fake:
    """A backend in a thread: `answer(self, sock, head, body)` does what it likes with a request."""

    def __init__(self, answer, model="demo"):
        self.answer, self.model = answer, model
        self.ready = 200
        self.requests, self.closed = [], 0
        self.sent = 0
        self.listener = socket.socket()
        self.listener.bind(("127.0.0.1", 0))
        self.listener.listen(64)
        self.url = "http://127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                sock, _ = self.listener.accept()
            except OSError:
                return
            threading.Thread(target=self.talk, args=(sock,), daemon=True).start()

    def talk(self, sock):
        data = b""
        try:
            while True:
                while b"\r\n\r\n" not in data:
                    more = sock.recv(65536)
                    if not more:
                        return
                    data += more
                head, data = data.split(b"\r\n\r\n", 1)
                head = head.decode("latin-1")
                m = re.search(r"^content-length: (\d+)", head, re.I | re.M)
                n = int(m.group(1)) if m else 0
                while len(data) < n:
                    data += sock.recv(65536)
                body, data = data[:n], data[n:]
                target = head.split(" ")[1]
                if target == "/ready":
                    say(sock, self.ready, b"{}")
                elif target == "/v1/models":
                    say(sock, 200, json.dumps({"data": [{"id": self.model}]}).encode())
                else:
                    self.requests.append(head)
                    if self.answer(self, sock, head, body) == "close":
                        return
        except OSError:
            pass
        finally:
            self.closed += 1
            sock.close()


def say(sock, status, body, fields=""):
    sock.sendall(("HTTP/1.1 %d X\r\n%sContent-Length: %d\r\n\r\n" % (status, fields, len(body))).encode() + body)


def says(status, body=b"{}", fields=""):
    return lambda self, sock, head, request: say(sock, status, body, fields)


def sends(data):
    def answer(self, sock, head, request):
        sock.sendall(data)
        return "close"
    return answer


def echo(self, sock, head, body):
    say(sock, 200, json.dumps({"head": head, "body": len(body)}).encode(),
        "Connection: x-drop\r\nx-drop: 1\r\nKeep-Alive: timeout=5\r\nx-stay: 2\r\nUpgrade: y\r\n")


# --- what must hold -----------------------------------------------------------------------------


def usage():
    def exits(*args):
        p = subprocess.run([PROGRAM, "router", *args], stdin=subprocess.DEVNULL, capture_output=True, text=True, env=ENV, timeout=DEADLINE)
        return p.returncode, p.stderr
    for args in (("--backend", "ftp://x"), ("--backend", "http://127.0.0.1"[:7]), ("--backend", "http://h:1/path"), ("--backend", "unix:"), (),
                 ("--backend", "http://127.0.0.1:1", "--backend", "http://127.0.0.1:1/"), ("--backend", "http://127.0.0.1:99999"),
                 ("--backend", "http://127.0.0.1:1", "--affinity", "sticky"), ("--backend", "http://127.0.0.1:1", "--listen", "nowhere"),
                 ("--backend", "http://127.0.0.1:1", "--health-interval", "5"), ("--backend", "http://127.0.0.1:1", "--max-body", "x"),
                 ("--backend", "http://127.0.0.1:1", "word"), ("--backend", "http://127.0.0.1:1", "--port", "1"), ("--backend", "https://127.0.0.1:1")):
        code, err = exits(*args)
        check(code == 2 and err.count("\n") == 1 and err.startswith("pantheon: "), "usage: %s gives %s %s" % (args, code, err))


def models(r, a, b, c):
    got = get(r, "/v1/models")
    ids = {m["id"]: m for m in got["data"]}
    check(sorted(ids) == ["demo", "other"] and got["object"] == "list" and len(got["data"]) == 2, "models are merged: %s" % sorted(ids))
    check(ids["demo"]["replicas"] == 2 and ids["other"]["replicas"] == 1 and ids["demo"]["context_length"] > 0, "replicas are added up")
    check(get(r, "/v1/models/other")["id"] == "other" and get(r, "/models/demo")["id"] == "demo", "a model is found where it is")
    for i in range(6):
        rid = "model-%d" % i
        status, _, _ = call(r, "POST", "/v1/chat/completions", {"model": "other", "messages": [user(str(i))], "max_tokens": 1}, {"x-request-id": rid})
        check(status == 200 and where(r, rid)[0] == c.url, "a model's requests go where it is")
    status, _, body = call(r, "GET", "/v1/models/nobody")
    check(status == 404 and json.loads(body)["error"]["code"] == "model_not_found", "an unknown model is a backend's 404")
    check(chat(r, [user("x")], model="nobody")[0] == 200, "a server of one model takes any name, also behind the router")
    check(call(r, "HEAD", "/v1/models")[0] == 200, "HEAD of the list")


def own_pages(r):
    check(get(r, "/health")["status"] == "ok" and get(r, "/ready") is not None and get(r, "/v1/healthz") is not None, "health and readiness")
    status, fields, body = call(r, "GET", "/metrics")
    text = body.decode()
    check(status == 200 and fields["content-type"].startswith("text/plain") and "# TYPE pantheon_router_requests_total counter" in text, "metrics")
    check(all(re.match(r'(#.*|pantheon_router_\w+(\{\w+="[^"]*"(,\w+="[^"]*")*\})? \d+)$', line) for line in text.splitlines()), "metrics are well-formed")
    check(call(r, "POST", "/health", "{}")[0] == 405, "another method on our own pages")
    for path in ("/admin/models", "/%61dmin/models", "/v1/admin/memory", "/admin"):
        status, _, body = call(r, "GET", path)
        check(status == 403 and json.loads(body)["error"]["type"] == "permission_error", path + " is refused")
    check(call(r, "POST", "/admin/models/unload", {"name": "demo"})[0] == 403, "unloading is refused")
    check(call(r, "GET", "//admin/models")[0] == 404, "what only looks like it is the backend's to refuse")
    check(call(r, "GET", "/nothing")[0] == 404, "an unknown path is a backend's 404")
    status, fields, _ = call(r, "GET", "/version", headers={"x-request-id": "mine-1"})
    check(status == 200 and fields["x-request-id"] == "mine-1", "a request id comes back")
    check(len(call(r, "GET", "/version")[1]["x-request-id"]) == 24, "or is made")


def sessions(r):
    kinds = [(lambda s: ({"session_id": s}, None)), (lambda s: ({"prompt_cache_key": s}, None)), (lambda s: ({}, {"X-Session-Id": s}))]
    spread = {}

    def turn(i, t):
        more, headers = kinds[i % 3]("session-%d" % i)
        rid = "s%d-%d" % (i, t)
        status, _, _ = chat(r, [user("%d" % t * (t + 1))], {**(headers or {}), "x-request-id": rid}, **more)
        return status, rid
    for t in range(2):
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for i, (status, rid) in enumerate(pool.map(lambda i: turn(i, t), range(32))):
                check(status == 200, "session %d turn %d: %d" % (i, t, status))
                at = where(r, rid)[0]
                if t == 0:
                    spread[i] = at
                else:
                    check(at == spread[i], "turn 2 of session %d lands where turn 1 did" % i)
    counts = sorted(list(spread.values()).count(u) for u in set(spread.values()))
    check(len(counts) == 2 and counts[0] >= 5, "sessions are spread: %s" % counts)


def prefixes(r):
    first, cached = {}, 0
    conversations = {i: [user("Conversation %d. " % i + "What is %d plus %d? " % (i, i + 1) * 10)] for i in range(32)}
    for t in range(2):
        for i, messages in conversations.items():
            rid = "p%d-%d" % (i, t)
            status, _, body = chat(r, messages, {"x-request-id": rid}, max_tokens=4)
            check(status == 200, "conversation %d turn %d: %d" % (i, t, status))
            answer, at = json.loads(body), where(r, rid)[0]
            if t == 0:
                first[i] = at
                messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}, user("And what is %d?" % i)]
            else:
                check(at == first[i], "turn 2 of conversation %d lands where turn 1 did" % i)
                cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    counts = sorted(list(first.values()).count(u) for u in set(first.values()))
    check(len(counts) == 2 and counts[0] >= 5, "conversations are spread: %s" % counts)
    check(metric(r, "chosen_total", by="prefix") >= 32, "chosen by prefix")
    check(cached == 32, "turn 2 finds its prefix in the cache: %d of 32" % cached)


def balance(r, a, b):
    streams = [Stream(r, 1500, "stream %d" % i) for i in range(8)]
    for s in streams:
        check(s.status == 200 and s.event(), "a stream begins")
    got = running(r)
    check(got[a.url] == 4 and got[b.url] == 4, "eight streams on two backends: %s" % got)
    # Those who leave are told to their backends.
    for s in streams:
        s.close()
    poll(lambda: sum(running(r).values()) == 0, "the router has let them go")
    for of in (a, b):
        poll(lambda: get(of, "/admin/models")["models"][0]["running"] == 0, "the backend has stopped working for them")
    check(metric(r, "requests_total", code="499") >= 8, "counted as 499")


def rss_kib(p):
    with open("/proc/%d/status" % p.pid) as f:
        return int(re.search(r"VmRSS:\s+(\d+)", f.read()).group(1))


def slow_reader(r, a, b):
    """A real stream that nobody reads for a while: others go on, nothing is lost."""
    body = json.dumps({"model": "demo", "messages": [user("slow")], "max_tokens": 1500, "ignore_eos": True, "stream": True}).encode()
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    host, port = r.url.split("//")[1].split(":")
    s.settimeout(DEADLINE)
    s.connect((host, int(port)))
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    poll(lambda: sum(running(r).values()) == 1, "the slow stream is under way")
    for i in range(4):
        check(chat(r, [user("quick %d" % i)])[0] == 200, "others are served meanwhile")
    out = read_all(s)
    check(out.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and out.count(b"data: ") > 1000, "and it is complete when it is read: %d events" % out.count(b"data: "))


def flood(self, sock, head, body):
    """100 MB, as fast as they are taken."""
    block = b"x" * 65536
    sock.sendall(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n" % (1600 * len(block)))
    for _ in range(1600):
        sock.sendall(block)
        self.sent += len(block)


def back_pressure():
    f = Fake(flood)
    r = router("pressure", [f])
    before = rss_kib(r.p) if os.path.exists("/proc/self/status") else 0
    s = raw(r, b"GET /flood HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head = s.recv(1)

    def stalled():
        was = f.sent
        time.sleep(0.3)
        return 0 < was == f.sent
    poll(stalled, "a client that does not read stops its backend")
    check(head == b"H" and f.sent < 60 << 20, "before it has sent all: %d" % f.sent)
    check(not before or rss_kib(r.p) - before < 8192, "and the router does not keep it: %d KiB more" % (rss_kib(r.p) - before if before else 0))
    out = head + read_all(s)
    check(len(out.split(b"\r\n\r\n", 1)[1]) == 1600 * 65536, "nothing is lost")
    check(r.end() == 0, "the router stops")


def passing_on():
    f = Fake(echo)
    r = router("echo", [f], "--max-body", "1M")
    status, fields, body = call(r, "POST", "/v1/x%20y/a%2Fb%3F?q=1&%41", "hello", {
        "X-Session-Id": "s", "Connection": "keep-alive, x-private", "x-private": "1", "TE": "trailers", "X-Forwarded-For": "9.9.9.9", "Authorization": "Bearer k",
        "x-request-id": "id-7"})
    head = json.loads(body)["head"]
    lines = head.split("\r\n")
    names = [l.split(":")[0].lower() for l in lines[1:]]
    check(status == 200 and lines[0] == "POST /v1/x%20y/a/b%3F?q=1&%41 HTTP/1.1", "the target is passed on: " + lines[0])
    check("X-Forwarded-For: 9.9.9.9, 127.0.0.1" in lines and "x-request-id: id-7" in lines, "who asked is passed on")
    check("Authorization: Bearer k" in lines and "X-Session-Id: s" in lines and names.count("content-length") == 1 and names.count("host") == 1, "fields are passed on")
    check(not {"x-private", "te", "connection", "keep-alive"} & set(names), "what is for one hop is not: %s" % names)
    check(fields.get("x-stay") == "2" and not {"x-drop", "keep-alive", "upgrade"} & set(fields) and fields["x-request-id"] == "id-7", "nor what the backend says for one hop")
    s = raw(r, b"GET /%s HTTP/1.1\r\nHost: x\r\nConnection: x-forwarded-for\r\nX-Forwarded-For: 1.1.1.1\r\n\r\n" % b"a")
    s.settimeout(DEADLINE)
    check(b"127.0.0.1" in s.recv(65536), "nobody can have X-Forwarded-For removed")
    s.close()
    check(json.loads(call(r, "POST", "/v1/chat/completions", b"x" * (1 << 20))[2])["body"] == 1 << 20, "a body of the limit")
    check(call(r, "POST", "/v1/chat/completions", b"x" * ((1 << 20) + 1))[0] == 413, "a body beyond it")
    s = raw(r, b"POST /c HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nExpect: 100-continue\r\n\r\n")
    check(s.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n", "100 Continue is ours to say")
    s.sendall(b"3\r\nabc\r\n0\r\n\r\nGET /two HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    out = read_all(s)
    check(out.count(b"HTTP/1.1 200") == 2 and b"Content-Length: 3" in out and b"GET /two" in out, "chunked bodies get a length; pipelined requests their answers")
    out = read_all(raw(r, b"GET /old HTTP/1.0\r\n\r\n"))
    check(out.startswith(b"HTTP/1.1 200") and b"GET /old HTTP/1.1" in out, "HTTP/1.0 is understood")
    conns = len(f.requests) - f.closed
    for i in range(20):
        call(r, "GET", "/again")
    check(len(f.requests) - f.closed - conns == 20 or f.closed <= 3, "connections to backends are kept: %d closed" % f.closed)
    check(r.end() == 0, "the router stops")


def retries():
    """Before the first byte, to somebody else, once."""
    good = Fake(says(200, b'{"who":"good"}'))
    cases = {
        "503": says(503, b'{"error":{"message":"full"}}', "Retry-After: 7\r\n"), "429": says(429, b'{"error":{"message":"full"}}', "Retry-After: 7\r\n"),
        "end": sends(b""), "cut head": sends(b"HTTP/1.1 200 OK\r\nContent-Le"),
    }
    for name, answer in cases.items():
        bad = Fake(answer)
        r = router("retry-" + name.replace(" ", "-"), [bad, good], "--affinity", "none")
        n_good, seen = len(good.requests), 0
        for i in range(20):
            status, _, body = call(r, "POST", "/v1/chat/completions", {"model": "demo", "messages": [user("try %d" % i)]})
            check(status == 200 and body == b'{"who":"good"}', "%s: tried again elsewhere: %d" % (name, status))
        seen = len(bad.requests)
        check(seen > 0 and len(good.requests) - n_good == 20, "%s: the bad one was asked %d times, the good one 20" % (name, seen))
        check(metric(r, "retries_total", backend=bad.url) == seen, "%s: retries are counted" % name)
        check(r.end() == 0, "the router stops")
    # Two that are full: the last one's answer is passed on, nobody is asked twice.
    full = [Fake(cases["429"]), Fake(cases["429"])]
    r = router("full", full)
    status, fields, body = call(r, "POST", "/v1/chat/completions", {"model": "demo", "messages": []})
    check(status == 429 and fields["retry-after"] == "7" and b"full" in body and [len(f.requests) for f in full] == [1, 1], "all are full: their answer is passed on")
    r.end()
    dead = [Fake(cases["end"]), Fake(cases["end"])]
    r = router("dead", dead)
    status, fields, body = call(r, "POST", "/v1/chat/completions", {"model": "demo", "messages": []})
    check(status == 503 and "retry-after" in fields and json.loads(body)["error"]["code"] == "no_backend", "all fail: 503")
    check([len(f.requests) for f in dead] == [1, 1], "each was asked once: %s" % [len(f.requests) for f in dead])
    status, _, body = call(r, "POST", "/v1/messages", {"model": "demo", "messages": []})
    check(json.loads(body)["type"] == "error" and status in (503, 529), "errors are what the client understands")
    r.end()
    # What is no HTTP, and what is no failure of the connection, is not tried again.
    broken = Fake(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx"))
    r = router("broken", [broken])
    status, _, body = call(r, "GET", "/x")
    check(status == 502 and json.loads(body)["error"]["code"] == "backend_failed", "an answer that can be read in two ways: %d" % status)
    r.end()
    silent = Fake(lambda self, sock, head, body: time.sleep(DEADLINE))
    r = router("silent", [silent, good], "--answer-timeout", "300ms", "--affinity", "none")
    got = sorted(call(r, "GET", "/x%d" % i)[0] for i in range(12))
    check(set(got) == {200, 504} and len(silent.requests) == got.count(504), "silence is not tried again: %s" % got)
    r.end()


def midway():
    """After the first byte there is no way back."""
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
    event = b'data: {"a":1}\n\n'
    cut = head + b"%x\r\n%s\r\n" % (len(event), event) + b"8\r\ndata: {\"\r\n"
    r = router("midway", [Fake(sends(cut))])
    for path, kind in (("/v1/chat/completions", "openai"), ("/v1/messages", "anthropic")):
        c = connection(r)
        c.request("POST", path, json.dumps({"model": "demo", "stream": True}))
        text = c.getresponse().read().decode()
        c.close()
        events = text.strip().split("\n\n")
        last = json.loads(events[-1].split("data: ")[1])
        check(events[0] == 'data: {"a":1}' and len(events) == 2 and "error" in last, "%s: whole events, then an error: %r" % (kind, text))
        check(events[1].startswith("event: error") == (kind == "anthropic") and (last.get("type") == "error") == (kind == "anthropic"), kind + ": its form")
    r.end()
    r = router("midway-whole", [Fake(sends(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nonly this"))])
    try:
        call(r, "POST", "/v1/chat/completions", {"model": "demo"})
        check(False, "a whole answer cut short must not look complete")
    except (http.client.IncompleteRead, ConnectionError):
        check(True, "a whole answer cut short ends with the connection")
    r.end()
    big = b"data: " + b"y" * 200000 + b"\n\n"
    whole = head + b"%x\r\n%s\r\n" % (len(big), big) + b"%x\r\n%s\r\n" % (len(event) - 1, event[:-1]) + b"1\r\n\n\r\n0\r\n\r\n"
    r = router("large-frame", [Fake(sends(whole))])
    check(call(r, "POST", "/v1/chat/completions", {"model": "demo"})[2] == big + event, "frames of any size, cut anywhere, arrive as they were")
    r.end()
    r = router("until-close", [Fake(sends(b"HTTP/1.0 200 OK\r\n\r\nall of it"))])
    check(call(r, "GET", "/x")[2] == b"all of it", "an answer that ends with the connection")
    r.end()


def draining():
    f, g = Fake(says(200, b"f")), Fake(says(200, b"g"))
    r = router("drain", [f, g], "--affinity", "none")
    f.ready = 503
    poll(lambda: states(r)[f.url] == "draining", "503 on /ready is seen")
    n = len(f.requests)
    check(all(call(r, "GET", "/x%d" % i)[2] == b"g" for i in range(12)) and len(f.requests) == n, "who drains gets nothing new")
    check(metric(r, "draining", backend=f.url) == 1 and metric(r, "up", backend=f.url) == 0 and metric(r, "up", backend=g.url) == 1, "and is told of")
    g.ready = 503
    poll(lambda: set(states(r).values()) == {"draining"}, "so does the other")
    status, fields, _ = call(r, "GET", "/ready")
    check(status == 503 and "retry-after" in fields and call(r, "GET", "/x")[0] == 503 and call(r, "GET", "/health")[0] == 200, "then the router is not ready, but well")
    f.ready = 200
    poll(lambda: states(r)[f.url] == "up", "one 200 brings it back")
    check(call(r, "GET", "/x")[2] == b"f" and call(r, "GET", "/ready")[0] == 200, "and its requests")
    f.ready = 500
    poll(lambda: states(r)[f.url] == "down", "other answers are failures")
    r.end()


def killed_while_streaming(r, a, b):
    s = Stream(r, 1800, "to be killed")
    check(s.status == 200 and s.event(), "a stream begins")
    victim = max((a, b), key=lambda p: running(r)[p.url])
    other = b if victim is a else a
    victim.kill()
    events = s.rest()
    last = json.loads(events[-1])
    check("error" in last and last["error"]["code"] == "backend_failed" and all("error" not in json.loads(e) for e in events[:-1]), "killed midway: an error event, then the end")
    s.close()
    for i in range(8):
        check(chat(r, [user("after %d" % i)])[0] == 200, "and requests go to the other one")
    poll(lambda: states(r)[victim.url] == "down", "it is down")
    check(metric(r, "up", backend=victim.url) == 0 and metric(r, "failures_total", backend=victim.url) >= 1, "and counted")
    victim.start()
    poll(lambda: states(r)[victim.url] == "up", "it is back")
    return victim, other


def killed_before_an_answer(r, a, b):
    """A request whose answer has not begun is asked again of the other one."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        job = pool.submit(chat, r, [user("count")], {"x-request-id": "moved"}, max_tokens=1800, ignore_eos=True)
        if not poll(lambda: sum(running(r).values()) == 1, "a request is under way"):
            return
        victim = max((a, b), key=lambda p: running(r)[p.url])
        victim.kill()
        status, _, body = job.result()
    at, tries = where(r, "moved")
    check(status == 200 and json.loads(body)["usage"]["completion_tokens"] > 1000 and tries == 2 and at != victim.url, "killed before the answer: the other one answers (%d tries)" % tries)
    victim.start()
    poll(lambda: states(r)[victim.url] == "up", "it is back")


def killed_while_idle(r, a, b):
    for i in range(4):                          # connections to both are in the pool
        chat(r, [user("warm %d" % i)])
    a.kill()
    for i in range(16):
        check(chat(r, [user("idle %d" % i)])[0] == 200, "one was killed while idle: nobody notices")
    poll(lambda: states(r)[a.url] == "down", "it is down")
    check("demo" in [m["id"] for m in get(r, "/v1/models")["data"]], "the list has what is left")
    a.start()
    poll(lambda: states(r)[a.url] == "up", "it is back")
    seen = set()

    def spread():
        for i in range(4):
            rid = "back-%d" % time.monotonic_ns()
            chat(r, [user(rid)], {"x-request-id": rid})
            seen.add(where(r, rid)[0])
        return len(seen) == 2
    poll(spread, "and gets requests again")


def backend_drains(r, a, b):
    """A backend told to stop finishes its streams; new requests go elsewhere."""
    s = Stream(r, 400, "to be finished")
    check(s.event(), "a stream begins")
    victim = max((a, b), key=lambda p: running(r)[p.url])
    victim.signal(signal.SIGTERM)
    for i in range(8):
        check(chat(r, [user("meanwhile %d" % i)])[0] == 200, "requests go on while a backend stops")
    events = s.rest()
    check(events[-1] == "[DONE]" and all("error" not in json.loads(e) for e in events[:-1]), "its stream is finished")
    s.close()
    code = victim.p.wait(DEADLINE)
    check(code == 0, "it exits with 0, not %s: %s" % (code, victim.text()[-2000:] if code else ""))
    victim.log.close()
    victim.start()
    poll(lambda: states(r)[victim.url] == "up", "it is back")


def router_drains(a, b):
    r = router("stopping", [a, b])
    s = Stream(r, 400)
    check(s.event(), "a stream begins")
    idle = raw(r, b"")
    r.signal(signal.SIGTERM)

    def refused():
        try:
            raw(r, b"").close()
        except ConnectionRefusedError:
            return True
        return False
    poll(refused, "a stopping router takes no connection")
    check(read_all(idle) == b"", "and lets idle ones go")
    check(s.rest()[-1] == "[DONE]", "and finishes its streams")
    s.close()
    check(r.p.wait(DEADLINE) == 0, "then it exits with 0")
    r = router("stopping-twice", [a, b])
    s = Stream(r, 1800)
    check(s.event(), "a stream begins")
    r.signal(signal.SIGINT)
    poll(lambda: "stopping: " in r.text(), "it drains")
    r.signal(signal.SIGINT)
    check(r.p.wait(DEADLINE) == 0, "the second signal stops it at once, with 0")
    s.close()
    r = router("stopping-late", [a, b], "--drain-timeout", "200ms")
    s = Stream(r, 1800)
    check(s.event(), "a stream begins")
    r.signal(signal.SIGTERM)
    events = s.rest()
    check("error" in json.loads(events[-1]), "when the time to drain is over a stream ends with an error")
    s.close()
    check(r.p.wait(DEADLINE) == 0, "and the router with 0")
    poll(lambda: get(a, "/admin/models")["models"][0]["running"] + get(b, "/admin/models")["models"][0]["running"] == 0, "backends are told")


def nobody_there():
    gone = socket.socket()
    gone.bind(("127.0.0.1", 0))
    url = "http://127.0.0.1:%d" % gone.getsockname()[1]
    gone.close()
    r = router("nobody", [url, "unix:" + os.path.join(tmp, "no.sock")])
    status, fields, body = chat(r, [user("x")])
    check(status == 503 and "retry-after" in fields and json.loads(body)["error"]["code"] == "no_backend", "nobody there: 503")
    check(call(r, "GET", "/ready")[0] == 503 and call(r, "GET", "/health")[0] == 200, "not ready, but well")
    check(r.end() == 0, "the router stops")


def keys():
    """Backends with API keys: the client's key is the backend's to judge, also for the merged list."""
    path = os.path.join(tmp, "keys")
    with open(path, "w") as f:
        f.write("# a key\n  sk-1   # ours\n")
    a = serve("keyed", "demo", "--port", "0", "--api-key-file", path)
    r = router("keyed-router", [a], "--backend-key-file", path)
    auth = {"Authorization": "Bearer sk-1"}
    check(call(r, "GET", "/v1/models")[0] == 401 and chat(r, [user("x")])[0] == 401, "without a key: 401")
    poll(lambda: [m["id"] for m in json.loads(call(r, "GET", "/v1/models", headers=auth)[2])["data"]] == ["demo"], "with one: the list")
    check(chat(r, [user("x")], auth)[0] == 200, "and answers")
    r.end()
    a.end()


def many_connections(r):
    def one(i):
        return chat(r, [user("many %d" % i)])[0]
    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        got = list(pool.map(one, range(96)))
    check(got.count(200) == 96, "96 requests, 24 at once: %s" % sorted(set(got)))
    check(sum(running(r).values()) == 0, "nothing is left under way")


def step(what, *args):
    began = time.monotonic()
    value = what(*args)
    if os.environ.get("VERBOSE"):
        print("%-26s %5.1f s, %d passed, %d failed" % (what.__name__, time.monotonic() - began, passed, failed), flush=True)
    return value


def main():
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    step(usage)
    step(passing_on)
    step(retries)
    step(midway)
    step(draining)
    step(back_pressure)
    step(nobody_there)
    step(keys)
    a = serve("a")
    a.args = a.args[:-2] + ("--port", a.url.rsplit(":", 1)[1])          # the same one when it is started again
    b = serve("b", "demo", "--socket", os.path.join(tmp, "b.sock"))
    c = serve("c", "other")
    r = router("router", [a, b, c])
    check(r.text().startswith("router build=") and "\nbackends: %s, %s, %s\n" % (a.url, b.url, c.url) in r.text(), "the start lines")
    step(models, r, a, b, c)
    step(own_pages, r)
    step(sessions, r)
    step(prefixes, r)
    step(balance, r, a, b)
    step(slow_reader, r, a, b)
    step(many_connections, r)
    step(killed_while_streaming, r, a, b)
    step(killed_before_an_answer, r, a, b)
    step(killed_while_idle, r, a, b)
    step(backend_drains, r, a, b)
    step(router_drains, a, b)
    check(r.end() == 0, "the router stops with 0")
    check("Sanitizer" not in "".join(open(os.path.join(tmp, f)).read() for f in os.listdir(tmp) if f.endswith(".log")), "no sanitizer had anything to say")
    for p in (a, b, c):
        check(p.end() == 0, p.name + " stops with 0")


with tempfile.TemporaryDirectory() as tmp:
    try:
        main()
    except Exception as e:                      # a broken test is a failed one
        import traceback
        traceback.print_exc(file=sys.stdout)
        failed += 1
        print("FAIL", type(e).__name__, e)
    finally:
        for p in procs:
            if p.poll() is None:
                p.kill()
                p.wait()
        if failed and os.environ.get("KEEP_LOGS"):
            import shutil
            shutil.copytree(tmp, os.environ["KEEP_LOGS"], dirs_exist_ok=True, ignore=shutil.ignore_patterns("*.sock"))
print("%d passed, %d failed" % (passed, failed))
sys.exit(1 if failed else 0)
