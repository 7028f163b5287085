#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_memory.py - `pantheon serve` when memory is short: refusals with numbers, bursts, levels from a script.

    python3 tests/live/test_memory.py build/pantheon [MODEL]

Run from the repository root.  Needs Python's standard library alone.
"""
import json
import os
import re
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, content, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

FOX = "Tell me a story about a fox."
MIB = 1 << 20


def ask(s, max_tokens, **more):
    body = {"model": "demo", "messages": [{"role": "user", "content": FOX}], "temperature": 0, "ignore_eos": True}
    if max_tokens:
        body["max_tokens"] = max_tokens
    body.update(more)
    return s.post("/v1/chat/completions", body)


def base(pantheon, model):
    """Bytes at most with one small request: what a limit has to leave."""
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "64", "--ctx", "2048") as s:
        equal(ask(s, 2).status, 200, "a small request")
        return s.get("/admin/memory").json()["peak"]


def settle(s):
    """Such a small limit is pressure: wait until nothing moves any more."""
    ask(s, 2)
    seen = [None]

    def still():
        m = s.get("/admin/memory").json()
        now = [m["used"], [x["applied"] for x in m["ladder"]]]
        time.sleep(0.6)
        same, seen[0] = now == seen[0], now
        return same or None
    until(still, "the ladder rests")


def refusals(pantheon, model, low):
    """What is told to fit, fits; a page more does not."""
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "64", "--ctx", "2048", "--mem-limit", str(low - MIB // 2)) as s:
        settle(s)
        for n in 1900, 1850, 1950:
            r = ask(s, n, strict_budget=True)
            equal(r.status, 400, "%d tokens: status" % n)
            e = r.error()
            equal([e["type"], e["code"], e["retryable"], e["kv_type"]], ["context_over_budget", "context_length_exceeded", False, "f16"],
                  "%d tokens: kind" % n)
            check("maximum context length is" in e["message"] and "exceeds the available context size" in e["message"], "words that agents match", e)
            equal(e["requested_tokens"], e["prompt_tokens"] + n, "%d tokens: requested" % n)
            check(e["limited_by"] == "context" or e["kv_bytes_needed"] > e["kv_bytes_available"] > 0, "%d tokens: bytes" % n, e)
            check(e["max_context_now"] % 64 == 0, "%d tokens: numbers" % n, e)
            equal(r.headers.get("x-should-retry"), "false", "x-should-retry")
            room = e["max_context_now"] - e["prompt_tokens"]
            equal(ask(s, room, strict_budget=True, stop=[" "]).status, 200, "%d tokens are said to fit" % room)
            equal(ask(s, room + 64, strict_budget=True).status, 400, "a page more")
        r = ask(s, 1900)
        equal(r.status, 200, "without strict_budget the answer shrinks")
        p = r.json()["pantheon"]
        check(100 < p["effective_max_tokens"] < 1900 and p["stopped_by"] is None, "effective_max_tokens", p)
        equal(r.json()["usage"]["completion_tokens"], p["effective_max_tokens"], "as many tokens as were promised")
        m = s.get("/admin/memory").json()
        check(m["level"] in ("OK", "WATCH", "TIGHT", "CRITICAL") and m["resources"][0]["name"] == "host" and m["ladder"], "/admin/memory", m)
        check([e for e in m["events"] if e["ev"] == "mem.admit" and e["decision"] == "refused"], "refusals are events", m["events"])
        text = s.get("/metrics").body.decode()
        for name in "level{", "budget_bytes{", "available_soft_bytes{", "rung_total{", 'admit_total{decision="refused"} ':
            check("pantheon_mem_" + name in text, "metric " + name)


def grants(pantheon, model, low):
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "64", "--ctx", "2048", "--default-max-new", "32", "--mem-limit", str(low + MIB)) as s:
        r = ask(s, 0).json()
        equal([r["choices"][0]["finish_reason"], r["pantheon"]["stopped_by"]], ["length", "memory"], "an answer without max_tokens grows until memory ends it")
        check(r["usage"]["completion_tokens"] > 64, "grants", r["usage"])


def burst(pantheon, model, low):
    """32 at once, where about three fit: each gets all of its answer, or is told why not before the first token."""
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "64", "--ctx", "2048", "--queue", "8", "--mem-limit", str(low + 9 * MIB // 4)) as s:
        replies = [None] * 32
        jobs = [threading.Thread(target=lambda i=i: replies.__setitem__(i, ask(s, 300))) for i in range(32)]
        for j in jobs:
            j.start()
        for j in jobs:
            j.join()
        kinds = [r.status for r in replies]
        check(set(kinds) <= {200, 429}, "200 or 429", kinds)
        check(kinds.count(200) >= 3, "some are answered", kinds)
        for r in replies:
            if r.status == 200:
                equal(r.json()["usage"]["completion_tokens"], 300, "an answer is whole")
            else:
                check(r.headers.get("Retry-After") and r.headers.get("retry-after-ms"), "when to try again", dict(r.headers))
        equal(ask(s, 400, no_wait=True).status, 200, "afterwards there is room")


def no_wait(pantheon, model, low):
    """One fits: who does not want to wait for it is told when to come again."""
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "64", "--ctx", "2048", "--mem-limit", str(low + 5 * MIB // 4)) as s:
        settle(s)
        slow = threading.Thread(target=lambda: ask(s, 400))
        slow.start()
        until(lambda: s.get("/admin/memory").json()["accounts"]["kv_reserve"]["used"] > MIB // 2 or None, "one is running")
        r = ask(s, 400, no_wait=True)
        e = r.error()
        equal([r.status, e["type"], e["code"], e["retryable"], e["suggestion"]], [429, "memory_busy", "queue_full", True, "retry_later"], "no_wait")
        check(e["retry_after_ms"] > 0 and e["max_context_now"] < e["requested_tokens"] <= e["max_context_alone"], "no_wait: numbers", e)
        slow.join()


def levels(pantheon, model, tmp):
    """A machine that gets into trouble after 3 s and out of it again."""
    script = os.path.join(tmp, "script")
    with open(script, "w") as f:
        f.write("budget 200M\n0 150M\n3 15M\n8 150M\n")
    with Server(pantheon, "-m", model, "--pressure-script", script, "--log", "json") as s:
        equal(ask(s, 200).status, 200, "before")
        r = until(lambda: (lambda m: m if m["level"] == "TIGHT" else None)(s.get("/admin/memory").json()), "TIGHT is reached")
        check(any(x["name"] == "prefix_cache" and x["freed"] > 0 for x in r["rungs"]), "the prefix cache was given up", r["rungs"])
        r = until(lambda: (lambda m: m if any(x["name"] == "step_rows" for x in m["rungs"]) else None)(s.get("/admin/memory").json()), "steps become smaller")
        check(re.search(r'^pantheon_mem_prefill_chunk\{die="0"\} (64|16)$', s.get("/metrics").body.decode(), re.M), "which the metrics say")
        equal(s.get("/admin/dies").json()["dies"][0]["level"], "TIGHT", "/admin/dies")
        r = ask(s, 20)
        equal([r.status, r.headers.get("x-pantheon-pressure"), r.json()["pantheon"]["level_max"]], [200, "TIGHT", "TIGHT"], "answered under pressure")
        until(lambda: s.get("/admin/memory").json()["level"] == "OK" or None, "OK is reached again", 60)
        equal(ask(s, 20).json()["pantheon"]["level_max"], "OK", "afterwards")
        check(s.find(r'"memory":\{"ev":"mem.level"') and s.find(r'"ev":"mem.rung"'), "events are in the log")


def models(pantheon, model, tmp):
    """Models that nobody uses go, and come back when somebody asks for them."""
    script = os.path.join(tmp, "script")
    with open(script, "w") as f:
        f.write("budget 200M\n0 150M\n12 15M\n17 150M\n")
    with Server(pantheon, "-m", model, "--name", "demo", "-m", model, "--name", "other", "--pressure-script", script) as s:
        equal([ask(s, 5, model=m).status for m in ("demo", "other")], [200, 200], "both answer")
        states = lambda: [m["state"] for m in s.get("/v1/models").json()["data"]]
        until(lambda: "parked" in states() or None, "a model at rest is parked")
        r = s.get("/admin/memory").json()
        check(any(x["name"] == "unload_idle" and x["applied"] for x in r["ladder"]), "by its rung", r["ladder"])
        parked = s.get("/v1/models").json()["data"][states().index("parked")]["id"]
        r = ask(s, 5, model=parked)
        equal([r.status, r.error()["code"]], [503, "loading"], "who asks for it waits")
        until(lambda: ask(s, 5, model=parked).status == 200 or None, "and gets an answer")


def aside(pantheon, model, tmp):
    """CRITICAL for some seconds, again and again: who is put aside is told so on its stream, and its answer is whole."""
    script = os.path.join(tmp, "aside")
    with open(script, "w") as f:
        f.write("budget 200M\n0 150M\n" + "".join("%d 6M\n%d 150M\n" % (t, t + 3) for t in range(2, 600, 6)))
    body = {"model": "demo", "prompt": FOX, "temperature": 0, "ignore_eos": True, "max_tokens": 1900, "stream": True, "cache_prompt": False}
    told, texts, stop = [], set(), time.monotonic() + 120
    with Server(pantheon, "-m", model, "--pressure-script", script, "--session-dir", os.path.join(tmp, "sessions")) as s:
        def client():
            while not told and time.monotonic() < stop:
                c, r = s.open("POST", "/v1/completions", body)
                lines = [line.decode().strip() for line in r]
                c.close()
                comments = [line for line in lines if line.startswith(": pn ")]
                texts.add("".join(json.loads(line[6:])["choices"][0]["text"] for line in lines if line.startswith("data: {")))
                check(lines[-2:] == ["data: [DONE]", ""], "a stream is whole", lines[-3:])
                equal(comments, [": pn parked", ": pn resumed"] * (len(comments) // 2), "comments go in pairs")
                if comments:
                    told.append(comments)
        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        check(told, "a stream is told that its request is parked")
        seen = re.findall(r"^pantheon_request_parked_seconds_count\{[^}]*\} (\d+)$", s.get("/metrics").body.decode(), re.M)
        check(seen and int(seen[0]) >= len(told), "and the metrics count it", [seen, len(told)])
        equal(len(texts), 1, "the text is the same")


def eviction(pantheon, model, tmp, low):
    """A load that does not fit beside a model at rest takes its place."""
    copy = os.path.join(tmp, "copy.gguf")
    with open(model, "rb") as a, open(copy, "wb") as b:
        b.write(a.read())
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "512", "--mem-limit", str(3 * MIB)) as s:
        equal(ask(s, 5).status, 200, "the first model answers")
        s.wait_counts("demo", running=0, queued=0)
        r = s.post("/admin/models/load", {"name": "copy", "path": copy, "wait": True})
        equal([r.status, r.json().get("state")], [200, "ready"], "the second is loaded")
        equal({m["id"]: m["state"] for m in s.get("/v1/models").json()["data"]}, {"demo": "parked", "copy": "ready"}, "instead of the first")
    # Its weights are page cache, which no limit counts: where the rest is not enough, it stays.
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx", "64") as s:
        equal(ask(s, 5).status, 200, "with a small context")
        used = s.get("/admin/memory").json()["used"]
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx", "64", "--mem-limit", str(used + MIB // 2)) as s:
        equal(ask(s, 5).status, 200, "beside a limit")
        s.wait_counts("demo", running=0, queued=0)
        r = s.post("/admin/models/load", {"name": "copy", "path": copy, "wait": True})
        check(r.status != 200, "the second does not fit", r.status)
        equal({m["id"]: m["state"] for m in s.get("/v1/models").json()["data"]}.get("demo"), "ready", "nobody goes in vain")
    with Server(pantheon, "-m", model, "--prefix-cache", "0", "--ctx-floor", "2048", "--mem-limit", str(MIB), ready=False) as s:
        equal(s.wait(), 3, "one that does not fit alone is refused")


def main():
    pantheon = sys.argv[1] if len(sys.argv) > 1 else "build/pantheon"
    model = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    with tempfile.TemporaryDirectory() as tmp:
        low = base(pantheon, model)
        refusals(pantheon, model, low)
        grants(pantheon, model, low)
        burst(pantheon, model, low)
        no_wait(pantheon, model, low)
        levels(pantheon, model, tmp)
        models(pantheon, model, tmp)
        aside(pantheon, model, tmp)
        eviction(pantheon, model, tmp, low)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
