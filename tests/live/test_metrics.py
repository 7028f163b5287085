#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_metrics.py - /metrics as Prometheus sees it: its linter, and a Prometheus that scrapes a server at work.

    python3 tests/live/test_metrics.py build/pantheon [MODEL]

Run from the repository root.  promtool and prometheus are Debian's package prometheus; what is not there is skipped.
"""
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
from serving import Checks, Server, chat, clean_env, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal


def use(s):
    """Every way a request can end, so that every family has something in it."""
    s.post("/v1/chat/completions", chat("Hi", max_tokens=3))
    s.stream("/v1/chat/completions", chat("Tell me a story.", max_tokens=30)).text()
    s.post("/v1/completions", {"prompt": "Once", "max_tokens": 2})
    s.post("/v1/embeddings", {"input": "a"})
    s.post("/v1/messages", {"max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]})
    s.post("/v1/responses", {"input": "Hi", "max_output_tokens": 2})
    s.post("/v1/chat/completions", chat("fox " * 3000))
    st = s.stream("/v1/chat/completions", chat("Tell me a story.", max_tokens=400, ignore_eos=True))
    st.first()
    st.close()
    s.wait_counts("demo", running=0)


def lint(pantheon, model):
    if not shutil.which("promtool"):
        checks.skip("promtool is not here (package prometheus)")
        return
    awkward = 'a "b" \\c'                       # names are labels: they have to be escaped
    for names in "default", "vllm":
        with Server(pantheon, "-m", model, "--name", "demo", "--alias", "x", "-m", model, "--name", awkward, "--metrics", names) as s:
            empty = s.get("/metrics").body
            use(s)
            for when, page in ("before requests", empty), ("after requests", s.get("/metrics").body):
                p = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60)
                problems = [x for x in (p.stdout + p.stderr).decode().splitlines() if x and not (names == "vllm" and "vllm:" in x)]
                check(not problems and (p.returncode == 0 or names == "vllm"), "promtool, %s names, %s" % (names, when), problems or p.returncode)


def free_port():
    with socket.socket() as c:
        c.bind(("127.0.0.1", 0))
        return c.getsockname()[1]


def scraped(pantheon, model, tmp):
    if not shutil.which("prometheus"):
        checks.skip("prometheus is not here (package prometheus)")
        return
    key = os.path.join(tmp, "keys")
    with open(key, "w") as f:
        f.write("scraper\n")
    with Server(pantheon, "-m", model, "--name", "demo") as s, open(os.path.join(tmp, "log"), "wb") as log:
        use(s)
        config, port = os.path.join(tmp, "prometheus.yml"), free_port()
        with open(config, "w") as f:
            f.write("global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n  - job_name: pantheon\n    static_configs:\n"
                    "      - targets: ['127.0.0.1:%d']\n" % s.port)
        p = subprocess.Popen(["prometheus", "--config.file=" + config, "--storage.tsdb.path=" + os.path.join(tmp, "data"),
                              "--web.listen-address=127.0.0.1:%d" % port], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_env())

        def query(q):
            """Labels and value of each series; None while there is no answer."""
            try:
                with urllib.request.urlopen("http://127.0.0.1:%d/api/v1/query?query=%s" % (port, urllib.parse.quote(q)), timeout=10) as r:
                    return [(x["metric"], float(x["value"][1])) for x in json.load(r)["data"]["result"]]
            except OSError:
                if p.poll() is not None:
                    raise AssertionError("prometheus ended with %s" % p.returncode)
                return None
        try:
            until(lambda: query('up{job="pantheon"} == 1'), "prometheus has scraped the server")
            total = until(lambda: query('pantheon_requests_total{endpoint="chat"}') or None, "pantheon_requests_total is there")
            check(all(m["model"] == "demo" for m, _ in total), "its label is the model's name", total)
            ended = {m["finished_reason"]: v for m, v in total}
            equal([ended.get("abort"), ended.get("error")], [1, 1], "one that was aborted, one that was wrong")
            check(sum(ended.values()) == 4, "all four chats", ended)
            tokens = query("pantheon_generation_tokens_total")
            check(tokens and tokens[0][1] > 30, "tokens", tokens)
            ttft = query("histogram_quantile(0.5, pantheon_time_to_first_token_seconds_bucket)")
            check(ttft and 0 < ttft[0][1] < 60, "a quantile of the time to the first token", ttft)
            for _ in range(3):
                s.post("/v1/chat/completions", chat("Hi", max_tokens=2))
            until(lambda: query('sum(pantheon_requests_total{endpoint="chat"}) == 7'), "the next scrape sees three more")
            check(True, "the next scrape sees three more")
            same = query("count(pantheon_requests_running) + count(pantheon_requests_waiting) + count(pantheon_kv_cache_usage_ratio)")
            equal(same and same[0][1], 3.0, "what a gateway asks for")
        finally:
            p.kill()
            p.wait()


def main():
    pantheon = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/pantheon")
    model = sys.argv[2] if len(sys.argv) > 2 else "models/demo.gguf"
    if not os.access(pantheon, os.X_OK) or not os.path.exists(model):
        checks.skip("%s or %s is not there" % (pantheon, model))
        return checks.end()
    checks.section(lint, pantheon, model)
    with tempfile.TemporaryDirectory() as tmp:
        checks.section(scraped, pantheon, model, tmp)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
