#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_load.py - many and hostile clients at once, and clients that go away by the thousand.

    python3 tests/live/test_load.py build/pantheon [MODEL] [--full] [--only load|log|abort] [--aborts N]

Run from the repository root; Python's standard library alone, Linux.  FULL=1 is --full: 100,000 aborted requests
instead of 2,000, 2,000 samples instead of 500, and the bar for latency holds whatever else the machine does.

Load: idle keep-alive connections, heads and bodies that come drop by drop, half-closed clients, readers of streams who
do not read, and a prefill of 32,000 tokens that never ends, all at once.  Meanwhile a process of its own asks for
/health and, turn by turn, an echo server that does nothing else: what that one needs is the machine's share.
run_tests: alone
"""
import json
import os
import random
import resource
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, content, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

N_IDLE, N_LORIS, N_HALF, N_STALLED = 1000, 40, 20, 4
HEALTH_MS, IDLE_BYTES = 50, 16 << 10
FOX = "Tell me a story about a fox."
ACCOUNTS = "kv", "conn", "misc", "scratch"


def status_kib(pid, key):
    with open("/proc/%d/status" % pid) as f:
        for line in f:
            if line.startswith(key + ":"):
                return int(line.split()[1])
    return 0


def accounts(s):
    """Bytes in use by account; asked for over one connection, so its own is always in it."""
    return {k: v["used"] for k, v in s.get("/admin/memory").json()["accounts"].items()}


def percentile(values, p):
    v = sorted(values)
    return v[min(len(v) - 1, int(p * len(v)))]


# --- the process that measures -----------------------------------------------------------------------

HEALTH = b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
HEALTH_BODY = b'{"status":"ok"}'


def echo():
    """Answers each line; prints its port."""
    with socket.socket() as l:
        l.bind(("127.0.0.1", 0))
        l.listen(1)
        print(l.getsockname()[1], flush=True)
        c, _ = l.accept()
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while True:
            data = c.recv(4096)
            if not data:
                return
            c.sendall(data)


def sample(port, echo_port, n):
    """n round trips to each, in milliseconds; every eighth to the server over a connection of its own."""
    def open_to(p):
        c = socket.create_connection(("127.0.0.1", p), 60)
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return c

    def ask(c, data, mark):
        c.sendall(data)
        got = b""
        while not got.endswith(mark):
            more = c.recv(4096)
            if not more:
                raise SystemExit("closed after %r" % got)
            got += more
    keep, other, served, echoed = open_to(port), open_to(echo_port), [], []
    for i in range(n):
        start = time.perf_counter()
        if i % 8:
            ask(keep, HEALTH, HEALTH_BODY)
        else:
            with open_to(port) as c:
                ask(c, HEALTH, HEALTH_BODY)
        served.append(1000 * (time.perf_counter() - start))
        start = time.perf_counter()
        ask(other, b"hello\n", b"hello\n")
        echoed.append(1000 * (time.perf_counter() - start))
        time.sleep(0.002)               # a pace, not a wait: samples spread over what is going on
    print(json.dumps([served, echoed]))


def measure(s, n):
    """Round trips of /health and of the echo, in milliseconds."""
    me = [sys.executable, os.path.abspath(__file__)]
    e = subprocess.Popen(me + ["--echo"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    try:
        port = int(e.stdout.readline())
        out = subprocess.run(me + ["--sample", str(s.port), str(port), str(n)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=280, check=True)
        return json.loads(out.stdout)
    finally:
        e.kill()
        e.wait()
        e.stdout.close()


def tell(name, served, echoed):
    print("%s: /health median %.2f ms, p99 %.2f ms, most %.2f ms; echo median %.2f ms, p99 %.2f ms, most %.2f ms (%d samples)" % (
        name, percentile(served, 0.5), percentile(served, 0.99), max(served), percentile(echoed, 0.5), percentile(echoed, 0.99), max(echoed), len(served)),
        flush=True)
    return percentile(served, 0.99), percentile(echoed, 0.99)


# --- clients -----------------------------------------------------------------------------------------

def post_bytes(body, path="/v1/chat/completions", length=None):
    return ("POST %s HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % (
        path, len(body) if length is None else length)).encode() + body


def ask_health(c):
    """Over a connection that stays open."""
    c.sendall(HEALTH)
    got = b""
    while not got.endswith(HEALTH_BODY):
        more = c.recv(4096)
        if not more:
            return False
        got += more
    return True


def idle_clients(s, n):
    """Connections that have asked once and say nothing more."""
    cs = [s.connect() for _ in range(n)]
    check(all(ask_health(c) for c in cs), "%d connections, each is answered" % n)
    return cs


class Background(threading.Thread):
    """function(stop) over and over until it is told to stop; what it throws is a failed check."""

    def __init__(self, name, function):
        super().__init__(daemon=True)
        self.over, self.function, self.name, self.turns = threading.Event(), function, name, 0
        self.start()

    def run(self):
        try:
            while not self.over.is_set():
                self.function(self.over)
                self.turns += 1
        except Exception as e:
            check(False, "%s: %s: %s" % (self.name, type(e).__name__, e))

    def end(self):
        self.over.set()
        self.join(120)
        check(not self.is_alive(), "%s comes to its end" % self.name)


def loris(s):
    """Heads and bodies, a byte every 50 ms to each of them."""
    head = b"GET /health HTTP/1.1\r\nHost: x\r\nX-Slow: " + b"a" * 100000
    body = post_bytes(b'{"messages":[' + b" " * 100000, length=200000)
    cs = [[s.connect(), head if i % 2 else body, 0 if i % 2 else body.index(b"{")] for i in range(N_LORIS)]
    for c in cs:
        c[0].sendall(c[1][:c[2]])

    def turn(over):
        for c in cs:
            try:
                c[0].sendall(c[1][c[2]:c[2] + 1])
            except OSError:             # the server has had enough of it: the next one comes
                c[0].close()
                c[0], c[2] = s.connect(), 0
            c[2] += 1
        over.wait(0.05)
    b = Background("slow clients", turn)
    b.sockets = [c[0] for c in cs]
    return b


def half_closed(s):
    """Clients that have said all they will say, and stay."""
    cs = []
    body = json.dumps(chat(FOX, max_tokens=400, ignore_eos=True)).encode()
    for i in range(N_HALF):
        c = s.connect()
        c.sendall([b"", HEALTH[:20], HEALTH, post_bytes(body)][i % 4])
        c.shutdown(socket.SHUT_WR)
        cs.append(c)
    return cs


def stalled(s):
    """Readers of endless streams that do not read."""
    cs = []
    body = json.dumps({"model": "long", "messages": [{"role": "user", "content": "Go on."}], "max_tokens": 30000, "ignore_eos": True, "stream": True,
                       "logprobs": True, "top_logprobs": 5}).encode()
    for _ in range(N_STALLED):
        c = socket.socket()
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        c.settimeout(60)
        c.connect(("127.0.0.1", s.port))
        c.sendall(post_bytes(body))
        cs.append(c)
    return cs


def prefills(s):
    """32,000 tokens after the other, never the same; when it is over who asked goes away in the middle."""
    n = [0]

    def turn(over):
        n[0] += 1
        body = json.dumps({"model": "long", "prompt": [3 + n[0] % 200] + [5, 6, 7, 8] * 8000, "max_tokens": 1}).encode()
        with s.connect() as c:
            c.sendall(post_bytes(body, "/v1/completions"))
            c.settimeout(0.1)
            while not over.is_set():
                try:
                    got = c.recv(4096)
                    if not got.startswith(b"HTTP/1.1 200"):
                        raise AssertionError("the prefill: %r" % got[:300])
                    return
                except TimeoutError:
                    continue
    return Background("prefill", turn)


# --- load --------------------------------------------------------------------------------------------

def load(pantheon, model, long_model, full):
    with Server(pantheon, "-m", model, "--name", "demo", "-m", long_model, "--name", "long", "--max-concurrent", "12", "--idle-timeout", "600s") as s:
        asks = [chat(p, max_tokens=60) for p in (FOX, "Tell me a story about a robot.", "What is the capital of France?")]
        solo = [content(s.post("/v1/chat/completions", a)) for a in asks]
        first = idle_clients(s, 20)
        tell("quiet", *measure(s, 200))
        before, rss = accounts(s), status_kib(s.p.pid, "VmRSS")
        idle = idle_clients(s, N_IDLE)
        after, rss_after = accounts(s), status_kib(s.p.pid, "VmRSS")
        each, each_rss = (after["conn"] - before["conn"]) / N_IDLE, 1024 * (rss_after - rss) / N_IDLE
        print("an idle connection: %.0f bytes by the account, %.0f of VmRSS" % (each, each_rss), flush=True)
        check(0 < each < IDLE_BYTES, "idle connection: less than 16 KiB by the account", each)
        check(each_rss < IDLE_BYTES, "idle connection: less than 16 KiB of VmRSS", each_rss)

        stalls, halves, slow, prefill = stalled(s), half_closed(s), loris(s), prefills(s)
        until(lambda: s.model("long")["running"] >= N_STALLED + 1, "stalled readers and the prefill have their places")
        streams = [Background("stream %d" % i, lambda over, i=i: equal(s.stream("/v1/chat/completions", asks[i]).text(), solo[i],
                                                                    "stream %d under load: its solo text" % i)) for i in range(len(asks))]
        served, echoed = measure(s, 2000 if full else 500)
        until(lambda: all(b.turns for b in streams), "each stream has come to its end under load")
        for b in streams:
            b.end()
        check(s.model("long")["running"] >= N_STALLED + 1, "stalled readers and the prefill are still there", s.model("long"))
        p99, machine = tell("under load", served, echoed)
        print("streams meanwhile: %d, prefills of 32,000 tokens: %d" % (sum(b.turns for b in streams), prefill.turns), flush=True)
        if p99 < HEALTH_MS or full or machine < HEALTH_MS / 4:
            check(p99 < HEALTH_MS, "/health under load: p99 < %d ms" % HEALTH_MS, p99)
        else:
            checks.skip("/health under load: p99 < %d ms: the machine is busy, an echo alone has a p99 of %.1f ms" % (HEALTH_MS, machine))
        for c in idle[::100]:
            equal(ask_health(c), True, "an idle connection is still good")
        slow.end()
        prefill.end()
        for c in first + idle + stalls + halves + slow.sockets:
            c.close()
        for name in "demo", "long":
            s.wait_counts(name, running=0, queued=0)
        until(lambda: accounts(s)["conn"] <= before["conn"] + 4096, "the memory of all these connections is given back")
        check(accounts(s)["kv"] == 0, "keys and values are given back", accounts(s))
        check(s.p.poll() is None and s.stop() == 0, "and the server ends in order")


# --- aborts ------------------------------------------------------------------------------------------

def reset(c):
    """Go away without a word: RST."""
    c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    c.close()


def abort_one(s, rng, bodies):
    """One request, given up at a random point of its life."""
    where = rng.randrange(6)
    short, stream, long_prompt = bodies
    c = s.connect()
    if where == 0:                          # before the body is complete
        data = post_bytes(stream)
        c.sendall(data[:rng.randrange(1, len(data))])
    elif where == 1:                        # at once: parsing, queued or being begun
        c.sendall(post_bytes(rng.choice(bodies)))
    elif where == 2:                        # queued or in its prefill
        c.sendall(post_bytes(long_prompt))
        c.settimeout(rng.random() * 0.02 + 0.0001)
        try:
            c.recv(1)
        except TimeoutError:
            pass
    elif where == 3:                        # in the middle of its stream
        c.sendall(post_bytes(stream))
        for _ in range(rng.randrange(1, 6)):
            if not c.recv(400):
                break
    elif where == 4:                        # after the last byte
        c.sendall(post_bytes(short))
        got = b""
        while b"}}" not in got and b'"error"' not in got:
            more = c.recv(4096)
            if not more:
                break
            got += more
    else:                                   # half-closed first
        c.sendall(post_bytes(stream))
        c.shutdown(socket.SHUT_WR)
    reset(c) if rng.randrange(2) else c.close()
    return where


def aborts(pantheon, model, total):
    workers = 8
    words = "one two three four five six seven eight nine ten ".split()
    with Server(pantheon, "-m", model, "--name", "demo", "--max-concurrent", "4", "--queue", "16", "--prefix-cache", "1M") as s:
        def bodies(rng):
            text = " ".join(rng.choice(words) for _ in range(300))
            return [json.dumps(b).encode() for b in (chat("Hi", max_tokens=1), chat(FOX, max_tokens=200, ignore_eos=True, stream=True),
                                                     chat(text, max_tokens=4, stream=rng.random() < 0.5))]

        def work(k, n, done):
            rng = random.Random(1000 + k)
            for _ in range(n):
                try:
                    done[abort_one(s, rng, bodies(rng))] += 1
                except ConnectionError:
                    done[6] += 1

        def batch(n):
            done = [[0] * 7 for _ in range(workers)]
            errors = []

            def run(k):
                try:
                    work(k, n // workers, done[k])
                except Exception as e:
                    errors.append(e)
            ts = [threading.Thread(target=run, args=(k,), daemon=True) for k in range(workers)]
            for t in ts:
                t.start()
            for t in ts:
                t.join()
            if errors:
                raise errors[0]
            s.wait_counts("demo", running=0, queued=0)
            return [sum(d[i] for d in done) for i in range(7)]
        batch(400)                          # what is made once is made now
        s.lines.clear()
        before, rss, start = accounts(s), [status_kib(s.p.pid, "VmRSS")], time.monotonic()
        counts = [0] * 7
        for _ in range(10):
            counts = [a + b for a, b in zip(counts, batch(total // 10))]
            rss.append(status_kib(s.p.pid, "VmRSS"))
            s.lines.clear()
        print("%d aborted requests in %.0f s (in the body %d, at once %d, queued or in prefill %d, in the stream %d, after it %d, half-closed %d, refused %d)"
              % ((sum(counts), time.monotonic() - start) + tuple(counts)))
        print("VmRSS in KiB, after each tenth: %s" % rss, flush=True)
        s.wait_counts("demo", running=0, queued=0)
        check(sum(counts[:6]) > 0.9 * total, "aborts: most came through", counts)
        until(lambda: accounts(s)["kv"] == before["kv"], "aborts: keys and values are given back: %s, now %s" % (before, accounts(s)))
        for name in ACCOUNTS:
            slack = {"conn": 1024, "scratch": 64 << 10}.get(name, 0)    # how long a name is; how large the largest step was
            until(lambda: accounts(s)[name] <= before[name] + slack, "aborts: account %s: %d, now %d" % (name, before[name], accounts(s)[name]))
            check(True, "aborts: account %s is back" % name)
        if total >= 10000:                      # until then the allocator is still finding its size
            check(min(rss[-3:]) <= max(rss[4:7]) + 512, "aborts: VmRSS does not grow over the last half", rss)
        check(rss[-1] <= rss[0] + (8 << 10), "aborts: VmRSS stays within 8 MiB of where it was", rss)
        equal(s.post("/v1/chat/completions", chat(FOX, max_tokens=20)).status, 200, "aborts: the server still answers")
        equal(s.stop(), 0, "aborts: and ends in order")


# --- a log nobody reads ------------------------------------------------------------------------------

def unread_log(pantheon, model):
    """stdout is a pipe that nobody empties: requests are answered all the same, and what is lost is told later."""
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        port = c.getsockname()[1]
    p = subprocess.Popen([pantheon, "serve", "-m", model, "--port", str(port)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, env=clean_env())
    try:
        while not p.stdout.readline().startswith(b"listening"):
            check(p.poll() is None, "a log nobody reads: the server starts")
        n, answers = 1500, 0
        body = post_bytes(b"{}")
        with socket.create_connection(("127.0.0.1", port), 30) as c:
            for _ in range(n):                  # each is refused, and logged
                c.sendall(body)
                got = b""
                while b'"error"' not in got or not got.endswith(b"}}"):
                    more = c.recv(4096)
                    if not more:
                        raise AssertionError("closed after %d answers" % answers)
                    got += more
                answers += 1
        equal(answers, n, "a log nobody reads: every request is answered")
        p.terminate()                           # what it says last comes through once there is room again
        out = p.stdout.read().decode()
        equal(p.wait(60), 0, "a log nobody reads: the server ends in order")
        check(all(x.startswith(("127.0.0.1 ", "stopping: ", "model ")) or "lines of the log are lost" in x for x in out.splitlines() if x), "a log nobody reads: whole lines",
              out[-500:])
        check(out.count("\n") < n, "a log nobody reads: lines were lost, or the pipe is endless", out.count("\n"))
    finally:
        if p.poll() is None:
            p.kill()
            p.wait()
        p.stdout.close()


def main():
    args = sys.argv[1:]
    if args[:1] == ["--echo"]:
        return echo()
    if args[:1] == ["--sample"]:
        return sample(*map(int, args[1:]))
    full = "--full" in args or os.environ.get("FULL") == "1"
    only = args[args.index("--only") + 1] if "--only" in args else None
    count = int(args[args.index("--aborts") + 1]) if "--aborts" in args else 100000 if full else 2000
    files = [a for i, a in enumerate(args) if not a.startswith("--") and (i == 0 or args[i - 1] not in ("--only", "--aborts"))]
    pantheon = os.path.abspath(files[0] if files else "build/pantheon")
    model = files[1] if len(files) > 1 else "models/demo.gguf"
    if not os.access(pantheon, os.X_OK) or not os.path.exists(model) or not os.path.exists("/proc/self/status"):
        checks.skip("%s, %s or /proc is not there" % (pantheon, model))
        return checks.end()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < 2 * N_IDLE:
        checks.skip("a process may open %d files here, not %d" % (hard, 2 * N_IDLE))
        return checks.end()
    if soft != resource.RLIM_INFINITY and soft < 2 * N_IDLE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * N_IDLE, hard))
    with tempfile.TemporaryDirectory() as tmp:
        long_model = os.path.join(tmp, "long.gguf")
        subprocess.run([pantheon, "synth", long_model, "--shape", "tiny", "--ctx", "40960", "--seed", "1", "-q"], check=True, env=clean_env())
        if only in (None, "load"):
            checks.section(load, pantheon, model, long_model, full)
        if only in (None, "log"):
            checks.section(unread_log, pantheon, model)
        if only in (None, "abort"):
            checks.section(aborts, pantheon, model, count)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
