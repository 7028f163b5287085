#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_haproxy.py - HAProxy in front of two servers, configured by examples/deploy/haproxy.cfg.

    python3 tests/live/test_haproxy.py build/pantheon [MODEL]

Run from the repository root.  Only the ports of the example are exchanged for free ones.  Each turn of a session has
to land where the one before it did, which the server's own count of cached tokens proves; streams come through
unbuffered; a server that goes leaves its sessions to the other one.
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, threads, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal
EXAMPLE = "examples/deploy/haproxy.cfg"
N_SESSIONS = 16


class Proxy(Server):
    """The same way of talking, to the port of HAProxy."""

    def __init__(self, config, port):
        self.port, self.lines = port, []
        self.err = tempfile.TemporaryFile()
        self.p = subprocess.Popen(["haproxy", "-db", "-f", config], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err, env=clean_env())
        import threading
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def up(self):
        try:
            return self.get("/health").status == 200
        except OSError:
            if self.p.poll() is not None:
                raise AssertionError("haproxy ended with %s: %s" % (self.p.returncode, self.stderr()[-500:]))
            return False


def free_port():
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        return c.getsockname()[1]


def requests_of(s):
    """Chats this server has ended."""
    page = s.get("/metrics").body.decode()
    return sum(float(m.group(1)) for m in re.finditer(r'^pantheon_requests_total\{[^}]*endpoint="chat"[^}]*\} (\S+)$', page, re.M))


def sticky(pantheon, model, tmp):
    with Server(pantheon, "-m", model, "--name", "demo") as one, Server(pantheon, "-m", model, "--name", "demo") as two:
        port, path = free_port(), os.path.join(tmp, "haproxy.cfg")
        with open(EXAMPLE) as f:
            text = f.read()
        for old, new in ("127.0.0.1:8000", port), ("127.0.0.1:8080", one.port), ("127.0.0.1:8081", two.port):
            check(old in text, "the example names %s" % old)
            text = text.replace(old, "127.0.0.1:<%d>" % new)
        with open(path, "w") as f:
            f.write(text.replace("<", "").replace(">", ""))
        p = subprocess.run(["haproxy", "-c", "-f", path], capture_output=True, timeout=60)
        check(p.returncode == 0 and b"WARN" not in p.stdout + p.stderr, "haproxy takes the example without a warning", p.stderr)
        with Proxy(path, port) as s:
            until(s.up, "haproxy listens")
            equal(s.get("/admin/models").status, 403, "nobody is an administrator because of the proxy")
            talk = {i: [{"role": "user", "content": "Story %d: " % i + "Tell me a story about a fox and a robot. " * 8}] for i in range(N_SESSIONS)}

            def turn(i):
                """Where it went: the server that has one more request is told by its cached tokens."""
                r = s.post("/v1/chat/completions", {"messages": talk[i], "temperature": 0, "max_tokens": 24}, {"X-Session-Id": "session-%d" % i})
                if r.status != 200:
                    raise AssertionError("session %d: %d %r" % (i, r.status, r.body[:200]))
                a = r.json()
                talk[i] += [a["choices"][0]["message"], {"role": "user", "content": "Go on."}]
                return a["usage"]["prompt_tokens_details"]["cached_tokens"], a["usage"]["prompt_tokens"]
            before = [requests_of(one), requests_of(two)]
            threads(turn, range(N_SESSIONS))
            first = [requests_of(one) - before[0], requests_of(two) - before[1]]
            check(min(first) > 0 and sum(first) == N_SESSIONS, "sessions are spread over both", first)
            for k in range(2, 4):
                cached = threads(turn, range(N_SESSIONS))
                check(all(c > 0 for c, _ in cached), "turn %d of each session lands where its prefix is" % k, cached)
                now = [requests_of(one) - before[0], requests_of(two) - before[1]]
                equal(now, [k * first[0], k * first[1]], "turn %d: each server has its own sessions again" % k)
            st = s.stream("/v1/chat/completions", chat("Tell me a story about a fox.", max_tokens=200, ignore_eos=True), {"X-Session-Id": "stream"})
            st.first()
            check(one.model("demo")["running"] + two.model("demo")["running"] == 1, "a stream comes through while it is being made")
            st.text()
            check(st.done and st.whole, "and comes to its end")
            st = s.stream("/v1/chat/completions", chat("Tell me a story about a fox.", max_tokens=1900, ignore_eos=True))
            st.first()
            st.close()
            until(lambda: one.model("demo")["running"] + two.model("demo")["running"] == 0, "a client that goes away is noticed behind the proxy")
            check(True, "a client that goes away is noticed behind the proxy")
            r = s.post("/v1/chat/completions", chat("fox " * 3000))
            check(r.status == 400 and r.error().get("code") == "context_length_exceeded", "errors come through as they are", r.body[:300])
            two.stop()
            results = threads(turn, range(N_SESSIONS))
            equal(len(results), N_SESSIONS, "one server has gone: all sessions are answered by the other one")


def main():
    pantheon = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/pantheon")
    model = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    if not os.access(pantheon, os.X_OK) or not os.path.exists(model):
        checks.skip("%s or %s is not there" % (pantheon, model))
    elif not shutil.which("haproxy"):
        checks.skip("haproxy is not here (package haproxy)")
    else:
        with tempfile.TemporaryDirectory() as tmp:
            checks.section(sticky, pantheon, model, tmp)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
