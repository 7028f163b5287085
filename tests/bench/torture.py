#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""torture.py - the same limit, file and requests for Pantheon and another server: what each of them did.

    python3 tests/bench/torture.py build/pantheon --peer llama-server --small F --q4 F --q8 F --large F --moe F [--only 2,3]

Needs root and a memory controller; files as `pantheon synth` makes them (a scenario whose file is not given is left out).
Each run has a control group of its own and starts with the page cache dropped; swap is off.  A row a scenario:

    1  default flags, --large in three times its size, on a host with more
    2  --q4 in 0.55 of its size: 24 tokens
    3  --q8 in 0.77, 0.55 and 0.22 of its size: 24 tokens
    4  four answers of 400 tokens to prompts of 200 in a pool of 1,024 tokens (--small)
    5  --prompts different prompts of 2,000 tokens, --small, its size and 400 MiB
    6  a hog takes nine tenths of the remainder during an answer and leaves (--q8 in 1.5 of its size)
    7  --moe in 0.3 of its size: 24 tokens
    8  --q4 answers in 1.5 of its size while a second one of it is loaded
   10  32 prompts of --burst tokens at once, a limit that fits about one (--small)

`killed` counts processes that the kernel ended.  A request that is not through in --box seconds is `slow`.
"""
import argparse
import http.client
import os
import socket
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "live", "lib"))
from limited import MIB, Hog, ask, ask_all, fresh_group, prompt  # noqa: E402
from mem_limit import read  # noqa: E402
from serving import Server, clean_env, until  # noqa: E402

PATH = "/v1/completions"


class Ours(Server):
    def __init__(self, a, group, model, *flags):
        self.group = group
        super().__init__(a.pantheon, "-m", model, "--name", "x", *flags, start=group.start)

    def alive(self):
        return self.p.poll() is None


class Peer:
    def __init__(self, a, group, model, *flags):
        self.port = free_port()
        self.p = group.start([a.peer, "-m", model, "--host", "127.0.0.1", "--port", str(self.port), "-t", "2", *flags],
                             stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=clean_env())
        end = time.monotonic() + 300
        while not http_ready(self.port, "/health"):
            if not self.alive():
                raise AssertionError("ended with %s while loading" % self.p.returncode)
            if time.monotonic() > end:
                raise AssertionError("not loaded in 300 s")
            time.sleep(0.05)

    def alive(self):
        return self.p.poll() is None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.alive():
            self.p.kill()
        self.p.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def http_ready(port, path):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        c.request("GET", path)
        return c.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        c.close()


def is_ours(kind):
    return kind is Ours


def told(answers):
    """What came of requests, in a few words."""
    kinds = {}
    for x in answers:
        if x.error.get("broken") == "TimeoutError":
            k = "slow"
        elif x.status == 200 and not x.failed_late:
            k = "whole"
        elif x.status == 200:
            k = "broken off"
        elif x.status == 0:
            k = "connection lost"
        else:
            k = "%d" % x.status
        kinds[k] = kinds.get(k, 0) + 1
    return ", ".join("%d %s" % (n, k) for k, n in sorted(kinds.items(), key=lambda kv: -kv[1])) or "no answer"


def speed(x):
    gaps = len(x.times) - 1
    return (x.tokens - 1) / (x.times[-1] - x.times[0]) if x.tokens > 1 and gaps > 0 and x.times[-1] > x.times[0] else 0


def run(a, kind, limit, model, flags, work):
    """A server in a group: what work(server, group) says, or how it ended."""
    with fresh_group(limit, model) as group:
        try:
            with kind(a, group, model, *flags) as s:
                said = work(s, group)
                if not s.alive():
                    said += "; the server is dead"
        except AssertionError as e:
            said = "refused to start: " + str(e)[-160:] if "ended with 3" in str(e) else str(e)[:100]
        kills = group.kind.oom_kills()
        peak = int(read(group.kind.folder + "/" + group.kind.PEAK, "0"))
    return "%s; peak %.2f L%s" % (said, peak / limit, "; **killed %d**" % kills if kills else "")


def one_answer(a, n=24, text=None):
    def work(s, group):
        x = ask(s.port, text or prompt(0, 12), n, a.box, PATH)
        return told([x]) + (", %.2f tok/s" % speed(x) if x.whole(n) else ", %.2f tok/s so far" % speed2(x) if x.times else "")
    return work


def speed2(x):
    return len(x.times) / x.took if x.took else 0


def size(f):
    return os.path.getsize(f)


def s1(a, kind):
    limit = 3 * size(a.large)
    return "limit %.1f GiB" % (limit / 2**30), run(a, kind, limit, a.large, [], one_answer(a, 8))


def fraction(f, share):
    def scenario(a, kind):
        path = getattr(a, f)
        flags = ["--ctx", "512"] if is_ours(kind) else ["-c", "512", "-np", "1"]
        return "L = %.2f N" % share, run(a, kind, share * size(path), path, flags, one_answer(a))
    return scenario


def s4(a, kind):
    # For us a pool is a number of bytes: what 1,024 tokens take and what the rest of the server takes.
    flags = ["--ctx", "1024", "--max-concurrent", "4", "--mem-limit", str(a.pool)] if is_ours(kind) else ["-c", "1024", "-np", "4", "-kvu"]

    def work(s, group):
        begun = time.monotonic()
        answers = ask_all(s.port, [prompt(i, a.words200) for i in range(4)], 400, a.box, path=PATH)
        return told(answers) + " in %.0f s" % (time.monotonic() - begun)
    return "pool of 1,024 tokens", run(a, kind, 4 << 30, a.small, flags, work)


def s5(a, kind):
    flags = ["--ctx", "2304"] if is_ours(kind) else ["-c", "2304", "-np", "1"]

    def work(s, group):
        answers = []
        for i in range(a.prompts):
            answers.append(ask(s.port, prompt(i, a.words200 * 10), 4, a.box, PATH))
            if not s.alive():
                break
        took = sorted(x.took for x in answers[:10]), sorted(x.took for x in answers[-10:])
        return told(answers) + ", last ten took %.2f of the first ten" % (took[1][len(took[1]) // 2] / took[0][len(took[0]) // 2])
    return "L = N + 400 MiB", run(a, kind, size(a.small) + 400 * MIB, a.small, flags, work)


def s6(a, kind):
    flags = ["--ctx", "512"] if is_ours(kind) else ["-c", "512", "-np", "1"]

    def work(s, group):
        ask(s.port, prompt(0, 12), 2, a.box, PATH)
        alone = ask(s.port, prompt(1, 12), 24, a.box, PATH)
        answers = []
        one = threading.Thread(target=lambda: answers.append(ask(s.port, prompt(2, 12), 48, a.box, PATH)))
        with Hog(group) as h:
            one.start()
            time.sleep(1)
            want = group.limit - int(group.stat().get("total_rss", 0)) - 16 * MIB
            took = h.take(0.9 * want, 0.0005)
            one.join()
            if took:
                h.leave()
            time.sleep(20)              # rungs are undone ten seconds after the last change
            after = ask(s.port, prompt(3, 12), 24, a.box, PATH)
        return "before %.1f, meanwhile %s %.1f, after %.1f tok/s%s" % (speed(alone), told(answers), speed(answers[0]), speed(after),
                                                                     "" if took else "; the hog was killed")
    return "L = 1.5 N", run(a, kind, 1.5 * size(a.q8), a.q8, flags, work)


def s8(a, kind):
    flags = ["--ctx", "512"] if is_ours(kind) else ["-c", "512", "-np", "1"]

    def work(s, group):
        answers = []
        one = threading.Thread(target=lambda: answers.append(ask(s.port, prompt(2, 12), 64, a.box, PATH)))
        one.start()
        time.sleep(1)
        if is_ours(kind):
            r = s.post("/admin/models/load", {"name": "second", "path": a.q4_copy})
            if r.status < 300:
                until(lambda: s.model("second") is None or s.model("second")["state"] != "loading", "the second is loaded")
                y = ask(s.port, prompt(1, 12), 4, a.box, PATH, model="second")
                second = "second loaded, " + told([y])
            else:
                second = "second refused: %d %s" % (r.status, r.error().get("type"))
        else:
            try:
                with Peer(a, group, a.q4_copy, *flags) as p:
                    y = ask(p.port, prompt(1, 12), 4, a.box, PATH)
                    second = "second loaded, " + told([y])
                    one.join()
            except AssertionError as e:
                second = "second " + str(e)
        one.join()
        x = answers[0]
        gaps = sorted(b - a_ for a_, b in zip(x.times, x.times[1:])) or [0]
        return "%s, longest gap %.2f s (median %.2f); %s" % (told([x]), gaps[-1], gaps[len(gaps) // 2], second)
    return "L = 1.5 N", run(a, kind, 1.5 * size(a.q4), a.q4, flags, work)


def s10(a, kind):
    ctx = a.burst + 64
    flags = ["--ctx", str(ctx), "--queue", "64"] if is_ours(kind) else ["-c", str(ctx * 32), "-np", "32"]
    limit = size(a.small) + int(1.5 * ctx * a.kv_per_token) + 64 * MIB

    def work(s, group):
        begun = time.monotonic()
        answers = ask_all(s.port, [prompt(i, a.words200 * a.burst // 200) for i in range(32)], 8, a.burst_box, path=PATH)
        return told(answers) + " in %.0f s" % (time.monotonic() - begun)
    return "L = N + %d MiB" % ((limit - size(a.small)) / MIB), run(a, kind, limit, a.small, flags, work)


SCENARIOS = [
    ("1", "default flags", "large", s1),
    ("2", "Q4_0 that does not fit", "q4", fraction("q4", 0.55)),
    ("3a", "Q8_0, most fits", "q8", fraction("q8", 0.77)),
    ("3b", "Q8_0, half fits", "q8", fraction("q8", 0.55)),
    ("3c", "Q8_0, a fifth fits", "q8", fraction("q8", 0.22)),
    ("4", "4 x (200 + 400 tokens)", "small", s4),
    ("5", "different prompts of 2,000 tokens", "small", s5),
    ("6", "a hog comes and goes", "q8", s6),
    ("7", "a mixture of experts", "moe", fraction("moe", 0.3)),
    ("8", "a second model meanwhile", "q4_copy", s8),
    ("10", "a burst of 32 long prompts", "small", s10),
]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("pantheon")
    p.add_argument("--peer")
    for f in ("small", "q4", "q4-copy", "q8", "large", "moe"):
        p.add_argument("--" + f)
    p.add_argument("--only", default="")
    p.add_argument("--box", type=float, default=120)
    p.add_argument("--burst-box", type=float, default=240)
    p.add_argument("--prompts", type=int, default=40)
    p.add_argument("--burst", type=int, default=2000)
    p.add_argument("--words200", type=int, default=68, help="words of a prompt of 200 tokens")
    p.add_argument("--pool", type=int, default=64 << 20)
    p.add_argument("--kv-per-token", type=int, default=23040)
    a = p.parse_args()
    only = [x for x in a.only.split(",") if x]
    print("load average %.1f\n\n| # | scenario | limit | other | Pantheon |\n|---|---|---|---|---|" % os.getloadavg()[0], flush=True)
    for number, name, needs, scenario in SCENARIOS:
        if not getattr(a, needs) or (only and number not in only and number.rstrip("abc") not in only):
            continue
        limit, theirs = scenario(a, Peer) if a.peer else ("", "-")
        limit, ours = scenario(a, Ours)
        print("| %s | %s | %s | %s | %s |" % (number, name, limit, theirs, ours), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
