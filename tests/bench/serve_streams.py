#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""serve_streams.py - what batching gives: tokens a second of one stream and of eight at once, and are the texts the same?

    python3 tests/bench/serve_streams.py build/pantheon MODEL.gguf [--streams 8] [--tokens 128] [--rounds 5] [--threads 2] [--bar 3]

One server for all of it.  A round is one stream, then eight at once, so that what the machine does meanwhile falls on
both; the ratio is told of each round and of the medians.  A rate counts from the first token of the first stream to
the last token of the last one (decoding), and from the request on (with the prefill).  Each stream has its own prompt,
greedy, and its text alone is what it has to say among others.  Exit 1: a text differed, or the median is below the bar.
"""
import argparse
import os
import statistics
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "live", "lib"))
from serving import Server, threads  # noqa: E402

TOPICS = "a fox", "the sea", "a lighthouse", "bread", "a long winter", "two brothers", "an old clock", "the moon", "a garden", "rain", "a train", "snow", \
    "a letter", "iron", "a river", "salt"


def ask(i, tokens):
    return {"messages": [{"role": "user", "content": "Write a story about %s." % TOPICS[i % len(TOPICS)]}], "temperature": 0, "max_tokens": tokens,
            "ignore_eos": True, "stream_options": {"include_usage": True}}


def run(s, i, tokens):
    """One stream: its text, its tokens, when it began, when its first and its last token came."""
    began, first, last, text, n = time.monotonic(), None, None, [], 0
    st = s.stream("/v1/chat/completions", ask(i, tokens))
    for e in st.events():
        if e.get("usage"):
            n = e["usage"]["completion_tokens"]
        if e["choices"] and e["choices"][0]["delta"].get("content"):
            last = time.monotonic()
            first = first or last
            text.append(e["choices"][0]["delta"]["content"])
    if not st.done or n < 2:
        raise SystemExit("stream %d ended early: %d tokens" % (i, n))
    return "".join(text), n, began, first, last


def rates(results):
    """Tokens a second: decoding, all."""
    n = sum(r[1] for r in results)
    began, first, last = min(r[2] for r in results), min(r[3] for r in results), max(r[4] for r in results)
    return (n - len(results)) / (last - first), n / (last - began)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("pantheon")
    a.add_argument("model")
    for flag, default in ("--streams", 8), ("--tokens", 128), ("--rounds", 5), ("--threads", 2):
        a.add_argument(flag, type=int, default=default)
    a.add_argument("--bar", type=float, default=3.0)
    a = a.parse_args()
    different, ratios = 0, []
    # Without a prefix cache: every round prefills the same, and round 1 is no different from the others.
    with Server(os.path.abspath(a.pantheon), "-m", a.model, "--max-concurrent", str(a.streams), "--threads", str(a.threads), "--prefix-cache", "0") as s:
        solo = [run(s, i, a.tokens)[0] for i in range(a.streams)]
        print("%d streams of %d tokens, %d threads, %s" % (a.streams, a.tokens, a.threads, os.path.basename(a.model)))
        print("%6s %14s %14s %8s %14s %14s %8s" % ("round", "one, tok/s", "%d, tok/s" % a.streams, "ratio", "with prefill", "with prefill", "ratio"))
        table = []
        for k in range(a.rounds):
            alone = rates([run(s, k % a.streams, a.tokens)])
            many = threads(lambda i: run(s, i, a.tokens), range(a.streams))
            for i, r in enumerate(many):
                if r[0] != solo[i]:
                    different += 1
                    at = next((j for j, (x, y) in enumerate(zip(r[0], solo[i])) if x != y), min(len(r[0]), len(solo[i])))
                    print("stream %d differs from its solo text at character %d: %r, alone %r" % (i, at, r[0][at:at + 60], solo[i][at:at + 60]))
            together = rates(many)
            table.append((alone[0], together[0], alone[1], together[1]))
            ratios.append(together[0] / alone[0])
            print("%6d %14.1f %14.1f %8.2f %14.1f %14.1f %8.2f" % (k + 1, alone[0], together[0], ratios[-1], alone[1], together[1], together[1] / alone[1]), flush=True)
        m = [statistics.median(row[i] for row in table) for i in range(4)]
        print("%6s %14.1f %14.1f %8.2f %14.1f %14.1f %8.2f" % ("median", m[0], m[1], statistics.median(ratios), m[2], m[3], m[3] / m[2]))
        s.stop()
    ratio = statistics.median(ratios)
    print("texts: %s; ratio %.2f, expected at least %.2f: %s" % ("%d differ" % different if different else "all as alone", ratio, a.bar, "holds" if ratio >= a.bar else "does not hold"))
    return 1 if different or ratio < a.bar else 0


if __name__ == "__main__":
    sys.exit(main())
