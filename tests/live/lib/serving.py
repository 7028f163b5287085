# SPDX-License-Identifier: AGPL-3.0-only
"""Start `pantheon serve`, talk to it, count checks.  Standard library only.

Nothing here sleeps and hopes: what takes time is polled for, with a deadline that fails the check.
"""
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

DEADLINE = 60.0         # seconds for what should take a fraction of one: slow machines are no failure


def clean_env(**more):
    """The environment without PN_*: a stranger's are an error by design."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("PN_")}
    env.update(more)
    return env


def until(condition, what, seconds=DEADLINE):
    """Poll until condition() is true and return its value."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError("not within %g s: %s" % (seconds, what))
        time.sleep(0.005)


# --- counting ----------------------------------------------------------------------------------------

class Checks:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.lock = threading.Lock()

    def check(self, ok, name, found=None):
        with self.lock:
            if ok:
                self.passed += 1
            else:
                self.failed += 1
                print("FAIL %s%s" % (name, "" if found is None else ": found %s" % (repr(found)[:600],)), flush=True)
        return bool(ok)

    def equal(self, found, expected, name):
        return self.check(found == expected, name, None if found == expected else (found, "expected", expected))

    def skip(self, name):
        self.skipped += 1
        print("SKIP %s" % name, flush=True)

    def section(self, function, *args):
        """One part of the test: what it throws is a failure, and the next part goes on."""
        try:
            function(*args)
        except Exception as e:
            import traceback
            at = traceback.extract_tb(e.__traceback__)
            here = [f for f in at if f.filename == sys.argv[0]] or at
            self.check(False, "%s (line %d): %s: %s" % (function.__name__, here[-1].lineno, type(e).__name__, str(e)[:600]))

    def end(self):
        print("%d passed, %d failed%s" % (self.passed, self.failed, ", %d skipped" % self.skipped if self.skipped else ""))
        return 1 if self.failed else 0


# --- the server --------------------------------------------------------------------------------------

class Server:
    """`pantheon serve ARGS` on a free port of the loopback; killed at the latest with `with`.
    start: instead of subprocess.Popen, of a group with a limit for example."""

    def __init__(self, program, *args, ready=True, env=None, port=True, start=subprocess.Popen):
        argv = [program, "serve"] + (["--port", "0"] if port else []) + list(args)
        self.err = tempfile.TemporaryFile()
        self.p = start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=self.err,
                                  env=env or clean_env())
        self.lines = []
        self.port = None
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if ready:
            where = self.wait_line(r"^listening on (.*)$").group(1)
            m = re.match(r"http://.*:(\d+)$", where)
            self.port = int(m.group(1)) if m else None
            self.where = where

    def _read(self):
        for line in self.p.stdout:
            self.lines.append(line.decode("utf-8", "replace").rstrip("\n"))

    def find(self, pattern):
        for line in list(self.lines):
            m = re.search(pattern, line)
            if m:
                return m
        return None

    def wait_line(self, pattern):
        def look():
            m = self.find(pattern)
            if not m and self.p.poll() is not None:
                self.reader.join(DEADLINE)
                m = self.find(pattern)
                if not m:
                    raise AssertionError("the server ended with %s: %s" % (self.p.returncode, self.stderr()[-500:]))
            return m
        return until(look, "a line of the server that matches %s" % pattern)

    def stderr(self):
        self.err.seek(0)
        return self.err.read().decode("utf-8", "replace")

    def signal(self, number=signal.SIGTERM):
        self.p.send_signal(number)

    def wait(self, seconds=DEADLINE):
        """Its exit code."""
        code = self.p.wait(seconds)
        self.reader.join(DEADLINE)
        return code

    def stop(self):
        self.signal()
        return self.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.p.poll() is None:
            self.p.kill()
            self.p.wait()
        self.reader.join(DEADLINE)
        self.p.stdout.close()
        self.err.close()

    # --- talking to it ---

    def connect(self, timeout=DEADLINE):
        s = socket.create_connection(("127.0.0.1", self.port), timeout)
        s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return s

    def open(self, method, path, body=None, headers=None, timeout=DEADLINE):
        """A connection and its response, whose body has not been read."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        data = json.dumps(body).encode() if isinstance(body, (dict, list)) else body
        fields = {"Content-Type": "application/json"} if data is not None else {}
        fields.update(headers or {})
        c.request(method, path, data, fields)
        return c, c.getresponse()

    def call(self, method, path, body=None, headers=None):
        c, r = self.open(method, path, body, headers)
        try:
            return Reply(r.status, r.headers, r.read())
        finally:
            c.close()

    def get(self, path, headers=None):
        return self.call("GET", path, None, headers)

    def post(self, path, body, headers=None):
        return self.call("POST", path, body, headers)

    def model(self, name):
        """Of /admin/models, or None."""
        for m in self.get("/admin/models").json()["models"]:
            if m["name"] == name:
                return m
        return None

    def wait_counts(self, name, running=None, queued=None):
        def look():
            m = self.model(name)
            return m and (running is None or m["running"] == running) and (queued is None or m["queued"] == queued)
        until(look, "model %s has running=%s queued=%s, has %s" % (name, running, queued, self.model(name)))

    def stream(self, path, body, headers=None):
        return Stream(self, path, dict(body, stream=True), headers)


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        e = self.json().get("error")
        return e if isinstance(e, dict) else {}


class Stream:
    """A request whose answer comes as events.  events() checks the framing while it reads: fields and comments
    of one line, an empty line after each event."""

    def __init__(self, server, path, body, headers=None):
        self.c, self.r = server.open("POST", path, body, headers)
        self.status = self.r.status
        self.comments = 0
        self.done = False           # [DONE] came
        self.whole = False          # the body came to its end in order
        self.reader = self._events()

    def _events(self):
        event, data = None, []
        while True:
            line = self.r.readline()
            if not line:
                self.whole = not event and not data
                return
            if not line.endswith(b"\n"):
                raise AssertionError("an unfinished line: %r" % line[:200])
            line = line[:-1].decode("utf-8")
            if line.startswith("data: "):
                data.append(line[6:])
            elif line.startswith("event: "):
                event = line[7:]
            elif line.startswith(":"):
                self.comments += 1
            elif line == "":
                if data:
                    yield event, "\n".join(data)
                event, data = None, []
            else:
                raise AssertionError("not a line of an event stream: %r" % line[:200])

    def events(self):
        """Objects, up to [DONE] or the end."""
        for event, data in self.reader:
            if data == "[DONE]":
                self.done = True
            else:
                yield json.loads(data)

    def first(self, holds="content"):
        """Read until a delta has this key."""
        for e in self.events():
            if e.get("choices") and e["choices"][0].get("delta", {}).get(holds):
                return e
        raise AssertionError("the stream ended before a %s" % holds)

    def text(self):
        """The rest of the content of choice 0."""
        return "".join(e["choices"][0]["delta"].get("content") or "" for e in self.events() if e.get("choices"))

    def close(self):
        """Go away, as a client that was stopped does."""
        self.r.close()
        self.c.close()


def chat(text, **more):
    return dict({"model": "demo", "messages": [{"role": "user", "content": text}], "temperature": 0}, **more)


def content(reply):
    return reply.json()["choices"][0]["message"]["content"]


def threads(function, arguments):
    """function(argument) for all of them at once; the results in order.  What one throws is thrown here."""
    results, errors = [None] * len(arguments), []

    def run(i):
        try:
            results[i] = function(arguments[i])
        except Exception as e:
            errors.append(e)
    ts = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(arguments))]
    for t in ts:
        t.start()
    for t in ts:
        t.join(2 * DEADLINE)
        if t.is_alive():
            raise AssertionError("a thread did not come to its end")
    if errors:
        raise errors[0]
    return results
