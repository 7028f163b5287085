#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""serve_load.py - the same load on one or more OpenAI-compatible servers, turn by turn.

    python3 tests/bench/serve_load.py NAME=URL [NAME=URL ...] [--clients 1,4,16] [--rounds 3] [--tokens 64]
                                      [--prompt-words 200] [--model NAME]

Each client asks again and again for a streamed answer of exactly --tokens tokens (temperature 0, ignore_eos) to a
prompt that no other request has.  In every round each server has its turn with each number of clients, so what else
the machine does hits all alike.  Printed are medians over the rounds: tokens a second of all clients together, time to
the first token and between tokens (median and 99th percentile), and each server's ratio to the last one.

Needs nothing but Python 3.
"""
import argparse
import http.client
import json
import random
import statistics
import threading
import time
import urllib.parse


def ask(url, body):
    """Times at which pieces of the answer came, and how many tokens the server says it made."""
    at = urllib.parse.urlparse(url)
    conn = http.client.HTTPConnection(at.hostname, at.port, timeout=600)
    begun = time.monotonic()
    conn.request("POST", at.path.rstrip("/") + "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = conn.getresponse()
    if reply.status != 200:
        raise SystemExit(f"{url}: {reply.status} {reply.read(400)!r}")
    times, tokens = [], 0
    for line in reply:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        if chunk.get("usage"):
            tokens = chunk["usage"]["completion_tokens"]
        for choice in chunk.get("choices", []):
            if choice.get("delta", {}).get("content"):
                times.append(time.monotonic())
    conn.close()
    return begun, times, tokens


def load(url, clients, args, seed):
    """Every client asks args.requests times; what came of it."""
    rng = random.Random(seed)
    results, lock = [], threading.Lock()

    def client(number):
        for turn in range(args.requests):
            with lock:
                words = " ".join(rng.choice(WORDS) for _ in range(args.prompt_words))
            body = {"model": args.model, "stream": True, "stream_options": {"include_usage": True}, "temperature": 0, "ignore_eos": True,
                    "max_tokens": args.tokens, "messages": [{"role": "user", "content": f"{number} {turn} {words}"}]}
            result = ask(url, body)
            with lock:
                results.append(result)

    threads = [threading.Thread(target=client, args=(i,)) for i in range(clients)]
    begun = time.monotonic()
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    took = time.monotonic() - begun
    gaps = [b - a for _, times, _ in results for a, b in zip(times, times[1:])]
    first = [times[0] - start for start, times, _ in results if times]
    return {"tps": sum(n for _, _, n in results) / took, "ttft": first, "gaps": gaps}


def share(values, q):
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] * 1000 if values else float("nan")


WORDS = "time way year work day man world life hand part child eye woman place week case point company number group problem fact".split()


def main():
    p = argparse.ArgumentParser()
    p.add_argument("servers", nargs="+", metavar="NAME=URL")
    p.add_argument("--clients", default="1,4,16")
    p.add_argument("--rounds", type=int, default=3)
    p.add_argument("--requests", type=int, default=2)
    p.add_argument("--tokens", type=int, default=64)
    p.add_argument("--prompt-words", type=int, default=200)
    p.add_argument("--model", default="x")
    args = p.parse_args()
    servers = [s.split("=", 1) for s in args.servers]
    numbers = [int(n) for n in args.clients.split(",")]
    seen = {}
    for turn in range(args.rounds):
        for n in numbers:
            for name, url in servers if turn % 2 == 0 else reversed(servers):
                seen.setdefault((n, name), []).append(load(url, n, args, turn * 1000 + n))
    print(f"{'clients':>7} {'server':<14} {'tokens/s':>9} {'ratio':>6} {'ttft ms':>8} {'p99':>8} {'gap ms':>7} {'p99':>7}")
    for n in numbers:
        base = statistics.median(r["tps"] for r in seen[n, servers[-1][0]])
        for name, _ in servers:
            rounds = seen[n, name]
            tps = statistics.median(r["tps"] for r in rounds)
            ttft, gaps = [v for r in rounds for v in r["ttft"]], [v for r in rounds for v in r["gaps"]]
            print(f"{n:>7} {name:<14} {tps:>9.1f} {tps / base:>6.2f} {share(ttft, .5):>8.0f} {share(ttft, .99):>8.0f} {share(gaps, .5):>7.1f} "
                  f"{share(gaps, .99):>7.1f}")


if __name__ == "__main__":
    main()
