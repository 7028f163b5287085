#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_limits.py - real limits: nobody is killed, whatever is asked of whichever model in however little.

    python3 tests/live/test_limits.py build/pantheon

Needs a memory controller (cgroup v1 or v2) in which a child may be made.  docs/memory.md says what each part shows;
tests/bench/limits.py has the same with larger models and more of each.
run_tests: alone
"""
import os
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from limited import MIB, Hog, Levels, Limited, ask, ask_all, fresh_group, plan, prompt, statuses  # noqa: E402
from mem_limit import Unlimited, cached_bytes  # noqa: E402
from serving import Checks, Server, clean_env, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal
TOKENS, CLIENTS = 6, 8


def reference(pantheon, model):
    """Texts without a limit."""
    with Server(pantheon, "-m", model, "--name", "x") as s:
        answers = [ask(s.port, prompt(i, 12), TOKENS) for i in range(CLIENTS)]
        check(all(a.whole(TOKENS) for a in answers), "an answer without a limit", statuses(answers))
        return [a.text for a in answers]


def burst(s, where, texts, fits):
    answers = ask_all(s.port, [prompt(i, 12) for i in range(CLIENTS)], TOKENS)
    check(all(a.typed() for a in answers), where + ": each is answered in full or told why not", [str(a) for a in answers])
    check(all(a.whole(TOKENS) and a.text == t for a, t in zip(answers, texts) if a.status == 200),
          where + ": tokens are those of a run without limit", [(a.text, t) for a, t in zip(answers, texts) if a.text != t])
    check(not fits or any(a.status == 200 for a in answers), where + ": what is planned to fit is served", statuses(answers))


def hog(s, group, where):
    """80 % of the remainder while a reply is made, then it leaves: how far the level rises depends on the remainder's share."""
    answers = []
    one = threading.Thread(target=lambda: answers.append(ask(s.port, prompt(0, 12), 4 * TOKENS)))
    with Hog(group) as h:
        one.start()
        check(h.take(0.8 * group.spare(), 0.002), where + ": the hog lives")
        one.join()
        h.leave()
        left = time.monotonic()
        until(lambda: s.memory()["level"] == "OK" or None, where + ": OK is reached again", 20)
        check(time.monotonic() - left < 15, where + ": OK within 15 s", time.monotonic() - left)
    check(answers[0].typed(), where + ": a request beside a hog", str(answers[0]))
    equal(ask(s.port, prompt(0, 12), 2).status, 200, where + ": afterwards a request is served")


def limited(pantheon, model, limit, where, texts, with_hog):
    with fresh_group(limit, model) as group:
        fits = plan(group, pantheon, model, "--ctx", "512", "--batch", "16")["fits"]
        try:
            s = Limited(group, pantheon, "-m", model, "--name", "x")
        except AssertionError as e:
            check(not fits and "the server ended with 3" in str(e), where + ": what does not fit is refused with its numbers", str(e))
            equal(group.kind.oom_kills(), 0, where + ": nobody was killed")
            return
        with s:
            burst(s, where, texts, fits)
            a = ask(s.port, prompt(77, 3000), 2)
            check(a.status == 400 and a.error.get("type") == "context_over_budget", where + ": a prompt that is too long", str(a))
            if with_hog:
                hog(s, group, where)
            equal(s.p.poll(), None, where + ": the server lives")
            equal(s.stop(), 0, where + ": and stops in order")
        equal(group.kind.oom_kills(), 0, where + ": nobody was killed")


def matrix(pantheon, models):
    for model in models:
        n, texts = os.path.getsize(model), reference(pantheon, model)
        for name, limit in (("0.35 N", 0.35 * n), ("0.6 N", 0.6 * n), ("N + 100 MB", n + 100e6)):
            if limit > 20 * MIB:        # less is not enough for the program
                limited(pantheon, model, limit, "%s, %s" % (os.path.basename(model), name), texts, name != "0.6 N")


def squeezed(s, h):
    """What the ladder gives back is taken as well, until the level is CRITICAL."""
    m = s.memory()
    spare = m["resources"][0]["available_soft"] - 6 * MIB
    if m["level"] != "CRITICAL" and spare > 0:
        h.take(spare // 2 + 1, 0.001)
    time.sleep(1.1)             # the next reading
    return m["level"] == "CRITICAL"


def floor(pantheon, model):
    """Little more than the floor: a request as long as that is served."""
    with fresh_group(256 * MIB, model) as group:
        least = plan(group, pantheon, model, "--ctx", "512", "--batch", "16")["floor_bytes"]
    with fresh_group(least + 32 * MIB, model) as group, Limited(group, pantheon, "-m", model, "--name", "x", "--ctx-floor", "512") as s, Hog(group) as h:
        equal(ask(s.port, "one two three", 2).status, 200, "before CRITICAL a request is served")
        until(lambda: squeezed(s, h), "CRITICAL is reached", 25)
        a = ask(s.port, prompt(5, 145), 60)     # 145 words are some 430 tokens
        check(a.whole(60), "at CRITICAL a request of nearly as many tokens as the floor has is served", "%s, %s" % (a, a.error))
        equal([s.p.poll(), group.kind.oom_kills()], [None, 0], "at CRITICAL nobody is killed")


def shared(pantheon, model):
    """A second process with the same file adds what is its own."""
    with fresh_group(os.path.getsize(model) + 400 * MIB, model) as group:
        with Limited(group, pantheon, "-m", model, "--name", "x", "--ctx-floor", "512") as one:
            equal(ask(one.port, prompt(0, 12), 2).status, 200, "one process")
            first = group.usage()
            with Limited(group, pantheon, "-m", model, "--name", "x", "--ctx-floor", "512") as two:
                equal(ask(two.port, prompt(0, 12), 2).status, 200, "another one, the same file")
                check(group.usage() - first < 64 * MIB, "it adds less than 64 MiB", (group.usage() - first) / MIB)
                equal([one.memory()["level"], two.memory()["level"]], ["OK", "OK"], "neither is short of memory")
        check(cached_bytes(model) > 0.9 * os.path.getsize(model), "the file was mapped")


def main():
    pantheon = sys.argv[1] if len(sys.argv) > 1 else "build/pantheon"
    with tempfile.TemporaryDirectory() as tmp:
        try:
            fresh_group(64 * MIB).close()
        except Unlimited as e:
            checks.skip("no real limit can be set here: %s" % e)
            return checks.end()
        models = [os.path.join(tmp, shape + ".gguf") for shape in ("tiny", "135m")]
        for m in models:
            subprocess.run([pantheon, "synth", m, "--shape", os.path.basename(m)[:-5], "-q"], check=True, env=clean_env())
        for part, args in ((matrix, models), (floor, models[1]), (shared, models[1])):
            checks.section(part, pantheon, args)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
