#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_replicas.py - `pantheon serve` with several dies, simulated ones: replicas of a model, where a conversation's
turns go, replicas that come and go, one model on two dies.

    python3 tests/live/test_replicas.py build/pantheon [MODEL]

Run from the repository root.  Needs Python's standard library alone.
"""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, content, threads, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

SESSIONS = 64
TALE = ("There was a small house at the edge of the forest, and in the house lived an old woman and her cat. Every morning the old woman went "
        "to the well, and every morning the cat went with her. One day the well was empty, and they heard a small voice from below.")


def sim(text="2", **more):
    return clean_env(PN_SIM_DIES=text, **more)


def twice(pantheon, model, *args, env=None):
    return Server(pantheon, "-m", model, "--name", "demo", "-m", model, "--name", "demo", "--queue", "256", *args, env=env or sim())


def entry(s):
    return s.model("demo")


def served(s):
    return {r["dies"][0]: r["served"] for r in entry(s)["replicas"]}


# --- turns go where their beginning is ---------------------------------------------------------------

def turns(pantheon, model):
    """A quarter name their session in the body, a quarter in the head, the others send their messages again."""
    with twice(pantheon, model) as s:
        check(s.lines[0].startswith("backend=cpu build=") and s.lines[0].endswith(" accelerator=sim"), "first line", s.lines[0])
        equal(s.lines[1], "dies: 0 1", "second line")
        m = s.get("/v1/models").json()["data"]
        equal([len(m), m[0]["replicas"]], [1, 2], "one name, two replicas")

        def ask(i, messages):
            body = {"model": "demo", "messages": messages, "temperature": 0, "max_tokens": 6}
            if i % 4 == 0:
                body["session_id"] = "session %d" % i
            r = s.post("/v1/chat/completions", body, {"X-Session-Id": "head %d" % i} if i % 4 == 1 else None)
            if r.status != 200:
                raise AssertionError("session %d: %d %s" % (i, r.status, r.body[:300]))
            return r.json()

        def first(i):
            messages = [{"role": "user", "content": "Number %d, and %d again. %s" % (i, i, TALE)}]
            answer = ask(i, messages)
            return messages + [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]}]

        def second(i):
            usage = ask(i, talks[i] + [{"role": "user", "content": "And then?"}])["usage"]
            return usage["prompt_tokens_details"]["cached_tokens"]
        talks = threads(first, range(SESSIONS))
        before = served(s)
        check(min(before.values()) >= SESSIONS // 4 and sum(before.values()) == SESSIONS, "both replicas got work", before)
        cached = threads(second, range(SESSIONS))
        hits = sum(1 for n in cached if n > 0)
        check(hits >= 0.99 * SESSIONS, "turn 2 lands where its beginning is: %d of %d" % (hits, SESSIONS), cached)
        after = served(s)
        equal({d: after[d] - before[d] for d in after}, before, "as many second turns on each as first ones")
        dies = s.get("/admin/dies").json()["dies"]
        equal([(d["index"], d["kind"], d["total_bytes"], d["models"]) for d in dies], [(i, "sim", 1 << 30, ["demo"]) for i in range(2)], "/admin/dies")
        check(all(0 < d["free_bytes"] < d["total_bytes"] and d["clock_seconds"] > 0 and d["level"] == "OK" and d["name"] for d in dies),
              "dies: bytes and clocks", dies)
        whole = entry(s)
        equal([whole["dies"], whole["state"], whole["max_concurrent"], [r["dies"] for r in whole["replicas"]]], [[0, 1], "ready", 16, [[0], [1]]],
              "/admin/models: dies of each replica")
        equal(s.stop(), 0, "exit code")


# --- replicas come and go ----------------------------------------------------------------------------

def unload(s, **more):
    return s.post("/admin/models/unload", dict({"name": "demo"}, **more))


def load(s, path, **more):
    return s.post("/admin/models/load", dict({"name": "demo", "path": path}, **more))


def comings(pantheon, model):
    with twice(pantheon, model, "--max-concurrent", "4") as s:
        want = content(s.post("/v1/chat/completions", chat(TALE, max_tokens=40, ignore_eos=True)))
        streams = [s.stream("/v1/chat/completions", chat(TALE, max_tokens=40, ignore_eos=True, session_id="s%d" % i)) for i in range(12)]

        def work(i):
            if i == 0:
                return unload(s, dies=[0])
            return streams[i - 1].text()
        results = threads(work, range(13))
        equal([results[0].status, results[0].json()["state"], results[0].json()["die"]], [200, "unloaded", [0]], "unload of one replica")
        check(all(t == want for t in results[1:]), "its requests came to their end", results[1:])
        equal([entry(s)["dies"], s.get("/v1/models").json()["data"][0]["replicas"]], [[1], 1], "one replica is left")
        equal(content(s.post("/v1/chat/completions", chat(TALE, max_tokens=40, ignore_eos=True, session_id="s3"))), want, "and answers")
        equal(s.get("/admin/dies").json()["dies"][0]["models"], [], "die 0 is empty")
        e = unload(s, dies=[0])
        equal(e.status, 404, "no replica on that die")

        r = load(s, model, dies=[7])
        check(r.status == 400 and "die 7" in r.error()["message"], "unknown die", r.body)
        r = load(s, model + ".other", dies=[0])
        check(r.status == 400 and "another file" in r.error()["message"], "another file by that name", r.body)
        r = load(s, model, dies=[0])
        equal([r.status, r.json()["state"], r.json()["die"]], [200, "ready", [0]], "loaded again")
        r = load(s, model, dies=[0])
        equal([r.status, r.json()["die"], len(entry(s)["replicas"])], [200, [0], 2], "the same once more: nothing happens")
        r = load(s, model)
        equal([r.status, len(entry(s)["replicas"])], [200, 2], "without a die: it is there")
        r = load(s, model, dies=[1, 0])
        check(r.status == 400 and "die 1 already" in r.error()["message"], "the same name on the same die", r.body)
        r = load(s, model, name="another")
        check(r.status == 400 and "no die is free" in r.error()["message"] and "'demo'" in r.error()["message"], "no die is free", r.body)
        r = load(s, model, name="another", dies=[1])
        equal([r.status, s.get("/admin/dies").json()["dies"][1]["models"]], [200, ["demo", "another"]], "unless told to share")
        check(all(c.status == 200 for c in threads(lambda i: s.post("/v1/chat/completions", chat("Hi", model=["demo", "another"][i % 2], max_tokens=4)), range(8))),
              "both answer")
        r = unload(s)
        equal([r.status, r.json()["state"], s.model("demo")], [200, "unloaded", None], "unload of all")
        equal(s.post("/v1/chat/completions", chat("Hi", model="none")).json()["model"], "another", "one model is left")
        equal(s.stop(), 0, "exit code")


def refused(pantheon, model, name, word, code, *args, env=None):
    p = subprocess.run([pantheon, "serve", "--port", "0"] + list(args), stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=env or sim())
    err = p.stderr.decode()
    equal(p.returncode, code, "%s: exit code" % name)
    check(word in err and err.count("\n") == 1, "%s: one line that says %s" % (name, word), err)


def start_errors(pantheon, model):
    demo = ["-m", model, "--name", "demo"]
    refused(pantheon, model, "a third replica", "no die is free", 2, *demo * 3)
    refused(pantheon, model, "unknown die", "die 2", 2, *demo, "--dies", "2")
    refused(pantheon, model, "one die twice", "twice", 2, *demo, "--dies", "1,1")
    refused(pantheon, model, "three dies", "3 dies", 2, *demo, "--dies", "0,1,2", env=sim("3"))
    refused(pantheon, model, "two on one die", "die 1 already", 2, *demo, "--dies", "1", *demo, "--dies", "1")
    refused(pantheon, model, "the CPU alone", "CPU alone", 2, *demo * 2, env=clean_env())
    refused(pantheon, model, "a bad text", "PN_SIM_DIES: simulated dies: tps", 2, *demo, env=sim("2;tps=x"))
    refused(pantheon, model, "a die too small", "demo", 3, *demo, env=sim("2;bytes=1M"))
    with Server(pantheon, *demo, "--dies", "0", env=sim("2;die1.bytes=1M")) as s:
        r = load(s, model, dies=[1])
        e = r.error()
        equal([r.status, e["code"], [c["name"] for c in e["consumers"]]], [507, "insufficient_memory", ["demo"]], "507: a die too small")
        check(e["plan"]["short"] == e["plan"]["least"] - e["plan"]["available"] > 0, "507: the sums", e)
        m = entry(s)
        equal([m["state"], [r["state"] for r in m["replicas"]]], ["ready", ["ready", "failed"]], "the other replica stays")
        equal(s.get("/v1/models").json()["data"][0]["replicas"], 1, "replicas: those that are ready")
        equal(s.post("/v1/chat/completions", chat("Hi", max_tokens=3)).status, 200, "and answers")
        r = load(s, model, dies=[1], ctx_cap=64)
        equal([r.status, len(entry(s)["replicas"])], [507, 2], "another try replaces the failed one")
        equal(s.stop(), 0, "exit code")


# --- one model on two dies ---------------------------------------------------------------------------

def split(pantheon, model):
    question = chat(TALE, max_tokens=48, ignore_eos=True)
    with Server(pantheon, "-m", model, "--name", "demo") as s:
        equal(s.lines[0].split()[-1], "accelerator=none", "without PN_SIM_DIES")
        want = content(s.post("/v1/chat/completions", question))
    with Server(pantheon, "-m", model, "--name", "demo", "--dies", "0,1", env=sim("2;bytes=16M")) as s:
        answers = threads(lambda i: content(s.post("/v1/chat/completions", question)), range(6))
        check(all(a == want for a in answers), "a split model gives the same text", answers)
        m = entry(s)
        equal([m["dies"], len(m["replicas"]), m["replicas"][0]["dies"]], [[0, 1], 1, [0, 1]], "one replica on both dies")
        dies = s.get("/admin/dies").json()["dies"]
        check(all(d["models"] == ["demo"] and d["free_bytes"] < (16 << 20) - (1 << 20) for d in dies), "weights on both", dies)
        check(dies[0]["clock_seconds"] == dies[1]["clock_seconds"] > 0, "their clocks go together", dies)
        equal(unload(s, dies=[0, 1]).status, 200, "unload")
        until(lambda: all(d["models"] == [] for d in s.get("/admin/dies").json()["dies"]), "both dies are free")
        equal(s.stop(), 0, "exit code")


def main():
    pantheon = sys.argv[1] if len(sys.argv) > 1 else "build/pantheon"
    model = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    if not os.path.exists(model):
        checks.skip("replicas: there is no %s" % model)
        return checks.end()
    for part in turns, comings, start_errors, split:
        checks.section(part, pantheon, model)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
