# SPDX-License-Identifier: AGPL-3.0-only
"""Servers under a real memory limit, loads for them, and a hog beside them.  Standard library only.

A group counts page cache for whom touched it first, so with_limit() drops the model's before a run.  The hog is a
process of the same group that takes and gives back memory when told: what other programs of a container do.
"""
import http.client
import json
import subprocess
import sys
import threading
import time

import mem_limit
from serving import Server, clean_env

MIB = 1 << 20
WORDS = "time way year work day man world life hand part child eye woman place week case point company number group problem fact".split()
# Takes so many bytes in steps of a MiB, says so; 0 gives all back.  Its own memory hardly counts.
HOG = """
import mmap, sys, time
kept = []
for line in sys.stdin:
    size, step = map(float, line.split())
    if not size:
        kept.clear()
    while size > 0:
        m = mmap.mmap(-1, 1 << 20)
        for i in range(0, 1 << 20, 4096):
            m[i] = 1
        kept.append(m)
        size -= 1 << 20
        time.sleep(step)
    print("done", flush=True)
"""


def prompt(seed, words):
    """As many words as wanted, no two seeds alike."""
    x, out = seed * 7919 + 17, ["%d:" % seed]
    for _ in range(words):
        x = (x * 1103515245 + 12345) & 0x7fffffff
        out.append(WORDS[(x >> 16) % len(WORDS)])
    return " ".join(out)


def plan(group, program, model, *flags):
    """`pantheon plan` within the group: its numbers, whether it says fits or not."""
    p = group.start([program, "plan", model, "--json", *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=clean_env())
    out, err = p.communicate()
    try:
        return json.loads(out)
    except ValueError:
        return {"fits": False, "why": (out + err).decode()[-300:]}


class Limited(Server):
    """`pantheon serve` in a group; what it used is in peak and oom_kills when it is asked."""

    def __init__(self, group, program, *args, ready=True):
        self.group = group
        super().__init__(program, *args, ready=ready, start=group.start)

    def memory(self):
        return self.get("/admin/memory").json()


class Hog:
    def __init__(self, group):
        self.p = group.start([sys.executable, "-S", "-c", HOG], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.take(1)

    def take(self, size, step=0.0):
        """Returns when it has them; False: it died of it."""
        try:
            self.p.stdin.write(b"%d %f\n" % (size, step))
            self.p.stdin.flush()
            return self.p.stdout.readline() == b"done\n"
        except BrokenPipeError:
            return False

    def leave(self):
        return self.take(0)

    def close(self):
        self.p.kill()
        self.p.wait()
        for f in (self.p.stdin, self.p.stdout):
            try:
                f.close()
            except BrokenPipeError:         # a wish that was still to be written
                pass

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Answer:
    """What came of a request, whatever it was."""

    def __init__(self):
        self.status = 0             # 0: the connection broke
        self.text, self.tokens, self.finish = "", 0, None
        self.error = {}
        self.failed_late = False    # an error after the first byte, or an answer that breaks off
        self.first = self.took = None
        self.times = []             # of pieces
        self.level = None
        self.headers = {}

    def whole(self, n):
        return self.status == 200 and not self.failed_late and self.tokens == n

    def typed(self):
        """Whole with its reason, or refused with a kind that says what to do."""
        return self.status == 200 and not self.failed_late or self.status in (400, 429, 503, 507) and bool(self.error.get("type"))

    def __str__(self):
        return "%s %s%s" % (self.status, self.error.get("type") or "%d tokens" % self.tokens, " broken off" if self.failed_late else "")


def ask(port, text, n, timeout=60, path="/v1/chat/completions", **more):
    """One streamed answer of n tokens, temperature 0; of any server that speaks OpenAI's API."""
    a, begun = Answer(), time.monotonic()
    body = {"model": "x", "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True, "max_tokens": n}
    body.update({"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text})
    body.update(more)
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        c.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        r = c.getresponse()
        a.status, a.headers = r.status, r.headers
        if r.status != 200:
            try:
                a.error = json.loads(r.read()).get("error") or {}
            except ValueError:
                pass
            return a
        done = False
        for line in r:
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: {"):
                e = json.loads(line[6:])
                if e.get("error"):
                    a.error, a.failed_late = e["error"], True
                for choice in e.get("choices") or []:
                    piece = choice.get("text") or choice.get("delta", {}).get("content")
                    if piece:
                        a.first = a.first or time.monotonic() - begun
                        a.times.append(time.monotonic())
                        a.text += piece
                    a.finish = choice.get("finish_reason") or a.finish
                if e.get("usage"):
                    a.tokens = e["usage"]["completion_tokens"]
                if e.get("pantheon"):
                    a.level = e["pantheon"].get("level_max")
            elif line.startswith(b"error: ") or line.startswith(b'{"error"'):
                a.failed_late = True
        a.failed_late = a.failed_late or not done
    except (OSError, http.client.HTTPException) as e:
        a.failed_late, a.error = a.status == 200, {"broken": type(e).__name__}
        if not a.failed_late:
            a.status = 0
    finally:
        a.took = time.monotonic() - begun
        c.close()
    return a


def ask_all(port, texts, n, timeout=60, **more):
    """All at once; the answers in order."""
    answers = [None] * len(texts)

    def run(i):
        answers[i] = ask(port, texts[i], n, timeout, **more)
    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(texts))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return answers


class Levels:
    """Looks at /admin/memory all the time: when was which level, and how little was there."""

    def __init__(self, server):
        self.server, self.seen, self.stop = server, [], threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while not self.stop.wait(0.1):
            try:
                m = self.server.memory()
                self.seen.append((time.monotonic(), m["level"], m["resources"][0]))
            except (OSError, ValueError, http.client.HTTPException):
                pass

    def names(self, since=0.0):
        return {level for t, level, _ in self.seen if t >= since}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def statuses(answers):
    """"200 x 5, 429 x 3"."""
    found = {}
    for a in answers:
        key = "%d%s" % (a.status, "!" if a.failed_late else "") if a.status else "broken"
        found[key] = found.get(key, 0) + 1
    return ", ".join("%s x %d" % (k, n) for k, n in sorted(found.items()))


def killable(group):
    """Whether a limit of this group is a real one: RLIMIT_AS lets allocations fail instead."""
    return group.kind.folder is not None


def fresh_group(limit, *models):
    for m in models:
        mem_limit.drop_cache(m)
    return mem_limit.Group(int(limit) // 4096 * 4096, (mem_limit.GroupV2, mem_limit.GroupV1))
