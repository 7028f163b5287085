#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""limits.py - every model in every limit under every load: what happened, as rows of a table.

    python3 tests/bench/limits.py build/pantheon NAME=FILE.gguf ... [--limits 512M,1G,2G,4G] [--loads load,burst,long,hog]
                                  [--tokens 24] [--clients 32]

Needs root and a memory controller.  load: one request.  burst: --clients at once.  long: a prompt of 1,500 words.
hog: 80 % of the remainder is taken during an answer and given back after it.  Each cell is a server of its own that has
--box seconds; requests that are not through by then count as `slow`.  Columns: how the weights lay, statuses, kills, peak of
the group over the limit (page cache counts, so 1.00 is normal for mapped weights), time to the first token and tokens a
second (of the first answer; of all for a burst), and the worst level seen; for a hog the seconds from its last byte to TIGHT (if what it
leaves is as little) and from its leaving to OK.  Exit 1: somebody was killed, an answer broke off,
or what was planned to fit was not served.
"""
import argparse
import os
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "live", "lib"))
from limited import MIB, Hog, Levels, Limited, ask, ask_all, fresh_group, plan, prompt, statuses  # noqa: E402
from mem_limit import parse_size, read  # noqa: E402


def load_one(s, group, a):
    return [ask(s.port, prompt(0, 12), a.tokens, a.box)]


def load_burst(s, group, a):
    return ask_all(s.port, [prompt(i, 12) for i in range(a.clients)], a.tokens, a.box)


def load_long(s, group, a):
    return [ask(s.port, prompt(1, 1500), 4, 3 * a.box)]


def load_hog(s, group, a):
    ask(s.port, prompt(0, 12), 2, a.box)
    answers = []
    one = threading.Thread(target=lambda: answers.append(ask(s.port, prompt(0, 12), 2 * a.tokens, 2 * a.box)))
    with Hog(group) as h:
        one.start()
        h.take(0.8 * group.spare(), 0.0005)
        a.tight = within(s, ("TIGHT", "CRITICAL"), 5)
        one.join()
        h.leave()
        a.ok = within(s, ("OK",), 30)
    return answers


def within(s, levels, most):
    """Seconds until the server is at one of the levels; None: not in `most`."""
    begun = time.monotonic()
    while time.monotonic() - begun < most:
        if s.memory()["level"] in levels:
            return time.monotonic() - begun
        time.sleep(0.02)
    return None


LOADS = {"load": load_one, "burst": load_burst, "long": load_long, "hog": load_hog}


def cell(a, model, limit, load):
    with fresh_group(limit, model) as group:
        p = plan(group, a.pantheon, model, "--ctx", "512", "--batch", "16")
        how = "streamed, %.0f %% pinned" % (100.0 * p["pinned_bytes"] / p["weight_bytes"]) if p.get("stage_bytes") else "mapped"
        answers, levels, took, a.tight, a.ok = [], set(), 0, None, None
        try:
            with Limited(group, a.pantheon, "-m", model, "--name", "x", "--queue", "64") as s:
                with Levels(s) as seen:
                    begun = time.monotonic()
                    answers = LOADS[load](s, group, a)
                    took = time.monotonic() - begun
                levels = seen.names()
                alive = s.p.poll() is None
        except AssertionError as e:
            how, alive = "refused" if "ended with 3" in str(e) else "ended: " + str(e)[:60], "ended with 3" in str(e)
        kills = group.kind.oom_kills()
        peak = int(read(group.kind.folder + "/" + group.kind.PEAK, "0"))
    slow = [x for x in answers if x.error.get("broken") == "TimeoutError"]
    broken = [x for x in answers if not x.typed() and x not in slow]
    good = [x for x in answers if x.status == 200 and not x.failed_late]
    tps = sum(x.tokens for x in good) / took if load == "burst" and took else good[0].tokens / good[0].took if good else 0
    first = "%.2f s" % good[0].first if good and good[0].first else "-"
    worst = [n for n in ("CRITICAL", "TIGHT", "WATCH", "OK") if n in levels][:1]
    bad = kills or broken or not alive or (p["fits"] and answers and not good and load == "load")
    print("| %s | %s | %s | %s | %s%s | %d | %.2f | %s | %.1f | %s |%s" % (a.name, a.limit_name, load, how, statuses(answers) or "-", " (%d slow)" % len(slow) if slow else "",
          kills, peak / limit, first, tps, ("".join(worst) or "-") + ("" if load != "hog" else " (after %s, OK %s)" % tuple("-" if t is None else "%.2f s" % t for t in (a.tight, a.ok))), " **BAD** " + str([str(x) for x in broken][:3]) if bad else ""), flush=True)
    return bool(bad)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("pantheon")
    p.add_argument("models", nargs="+", metavar="NAME=FILE")
    p.add_argument("--limits", default="512M,1G,2G,4G")
    p.add_argument("--loads", default="load,burst,long,hog")
    p.add_argument("--tokens", type=int, default=24)
    p.add_argument("--clients", type=int, default=32)
    p.add_argument("--box", type=float, default=20)
    a = p.parse_args()
    print("load average %.1f\n\n| model | limit | load | weights | statuses | killed | peak / limit | first token | tok/s | worst level |" % os.getloadavg()[0])
    print("|---|---|---|---|---|---|---|---|---|---|")
    bad = 0
    for m in a.models:
        a.name, path = m.split("=", 1)
        for a.limit_name in a.limits.split(","):
            for load in a.loads.split(","):
                bad += cell(a, path, parse_size(a.limit_name), load)
    print("\n%d cells bad" % bad)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
