#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_hybrid.py - `pantheon serve` with a model that has recurrent layers: agents that send their whole conversation on
every turn, many at once.

    python3 tests/live/test_hybrid.py build/pantheon

Run from the repository root.  Needs Python's standard library alone.
"""
import os
import random
import sys
import tempfile
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server  # noqa: E402

MODEL = "tests/vectors/golden/arch/lfm2.gguf"
PAGE, AGENTS, TURNS, FIRST, MORE = 64, 6, 4, 100, 60

checks = Checks()
check, equal = checks.check, checks.equal


def said(agent, turn):
    """Token ids of a conversation: all of them begin alike, then each is its own."""
    common, own = random.Random(1), random.Random(100 + agent)
    n = FIRST + MORE * turn
    return [(common if i < 40 else own).randrange(250) for i in range(n)]


def turn_of(s, agent, turn):
    r = s.post("/v1/completions", {"model": "lfm2", "prompt": said(agent, turn), "max_tokens": 12, "temperature": 0, "ignore_eos": True})
    if not equal(r.status, 200, "agent %d, turn %d" % (agent, turn)):
        return None, 0
    j = r.json()
    return j["choices"][0]["text"], j["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0)


def agents(s, known):
    """All at once, each turn after turn: {(agent, turn): (text, cached tokens)}.  known(turn): what has to be cached."""
    out = {}

    def run(agent):
        for turn in range(TURNS):
            out[agent, turn] = turn_of(s, agent, turn)

    threads = [threading.Thread(target=run, args=(a,)) for a in range(AGENTS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for (agent, turn), (_, cached) in sorted(out.items()):
        equal(cached, known(turn), "cached tokens of agent %d, turn %d" % (agent, turn))
    return {k: v[0] for k, v in out.items()}


def boundary(turn):
    return (FIRST + MORE * turn) // PAGE * PAGE


def conversations(pantheon, folder):
    with Server(pantheon, "-m", MODEL, "--prefix-cache", "0", "--max-concurrent", "1") as s:
        alone = agents(s, lambda turn: 0)
    with Server(pantheon, "-m", MODEL, "--session-dir", folder) as s:
        # what is behind the last page boundary of the turn before is computed, and no more
        equal(agents(s, lambda turn: boundary(turn - 1) if turn else 0), alone, "texts of agents beside each other")
        used = s.get("/admin/memory").json()["accounts"]
        check(used["state"]["used"] > 0, "no snapshot is counted", used)
        equal(s.stop(), 0, "it ends")
    check(any(f.endswith("-81.pnkv") for f in os.listdir(folder)), "no file has a page and a snapshot", os.listdir(folder)[:5])
    with Server(pantheon, "-m", MODEL, "--session-dir", folder) as s:
        # the program was started again: the disk knows
        text, cached = turn_of(s, 3, TURNS - 1)
        equal((text, cached), (alone[3, TURNS - 1], boundary(TURNS - 1)), "a conversation of the last run")


def main():
    with tempfile.TemporaryDirectory() as folder:
        checks.section(conversations, sys.argv[1], folder)
    return checks.end()


sys.exit(main())
