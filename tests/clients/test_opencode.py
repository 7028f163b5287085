#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_opencode.py - opencode, unmodified, runs a turn against our server.

    python3 tests/clients/test_opencode.py build/pantheon

Its instructions and tools are more than 10,000 tokens, so the model is a synthetic one with a long context: that
proves the protocol (two requests at once, tools, streams, usage, overflow, abort), not the text.
"""
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "live", "lib"))
import clients  # noqa: E402
from serving import Checks, Server, clean_env, until  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal

LIMIT = 240     # seconds for a turn: a long prompt on a busy machine


class Opencode:
    """A home, a project and a configuration of its own; nothing is fetched or sent elsewhere."""

    def __init__(self, program, folder, port, context):
        self.program, self.project = program, os.path.join(folder, "project")
        os.makedirs(self.project)
        config = {
            "enabled_providers": ["pantheon"],      # it must not ask anybody else
            "model": "pantheon/long", "small_model": "pantheon/long", "autoupdate": False, "share": "disabled",
            # Half of its tools are long texts that say nothing about the protocol.
            "tools": {"bash": False, "todowrite": False, "task": False, "webfetch": False, "skill": False, "question": False},
            "provider": {"pantheon": {"npm": "@ai-sdk/openai-compatible", "name": "Pantheon",
                                      "options": {"baseURL": "http://127.0.0.1:%d/v1" % port, "apiKey": "none"},
                                      "models": {"long": {"name": "long", "limit": {"context": context, "output": 48}}}}}}
        path = os.path.join(self.project, "opencode.json")
        with open(path, "w") as f:
            json.dump(config, f)
        subprocess.run(["git", "init", "-q", self.project], check=False, stdin=subprocess.DEVNULL)
        dirs = {"XDG_%s_HOME" % x: os.path.join(folder, x.lower()) for x in ("CONFIG", "DATA", "CACHE", "STATE")}
        off = {"OPENCODE_DISABLE_" + x: "1" for x in ("AUTOUPDATE", "MODELS_FETCH", "DEFAULT_PLUGINS", "LSP_DOWNLOAD")}
        self.env = clean_env(HOME=folder, PWD=self.project, OPENCODE_CONFIG=path, **dirs, **off)
        self.out, self.err = os.path.join(folder, "out"), os.path.join(folder, "err")

    def start(self, *args):
        with open(self.out, "w") as out, open(self.err, "w") as err:
            return subprocess.Popen([self.program, "run", "--format", "json"] + list(args), cwd=self.project, env=self.env,
                                    stdin=subprocess.DEVNULL, stdout=out, stderr=err)

    def events(self):
        with open(self.out, errors="replace") as f:
            return [json.loads(x) for x in f if x.startswith("{") and x.endswith("\n")]

    def tail(self):
        with open(self.err, errors="replace") as f:
            return f.read()[-600:]


def end(p):
    if p.poll() is None:
        p.kill()
    p.wait()


def turn(pantheon, program, model, folder):
    with Server(pantheon, "-m", model, "--name", "long") as s:
        o = Opencode(program, os.path.join(folder, "turn"), s.port, 32768)
        p = o.start("Say hello.")
        try:
            code = p.wait(LIMIT)
        finally:
            end(p)
        equal(code, 0, "a turn: exit code")
        if code:
            print("    " + o.tail().replace("\n", "\n    "))
        kinds = [e["type"] for e in o.events()]
        check("step_start" in kinds and "step_finish" in kinds and "error" not in kinds, "a turn: it begins and ends", kinds)
        finish = next((e["part"] for e in o.events() if e["type"] == "step_finish"), {})
        tokens = finish.get("tokens", {})
        check(finish.get("reason") in ("stop", "length", "tool-calls"), "a turn: why it ended", finish)
        check(tokens.get("input", 0) + tokens.get("cache", {}).get("read", 0) > 10000 and tokens.get("output", 0) > 0, "a turn: its usage has arrived", tokens)
        done = [x for x in s.lines if "POST /v1/chat/completions 200" in x]
        check(len(done) >= 2, "a turn: a title and an answer", s.lines[-4:])
        s.wait_counts("long", running=0, queued=0)
        # Again in the same conversation, and away in the middle of it.
        p = o.start("--continue", "Go on.")
        try:
            until(lambda: s.model("long")["running"] > 0 or p.poll() is not None, "the second turn is under way", LIMIT)
            check(p.poll() is None, "a second turn is asked for", o.tail())
            p.send_signal(signal.SIGINT)
            p.wait(60)
        finally:
            end(p)
        s.wait_counts("long", running=0, queued=0)
        check(True, "stopped: nobody runs")
        equal(s.stop(), 0, "the server's exit code")


def overflow(pantheon, program, model, folder):
    """The server's context is smaller than the configuration says: it has to be seen as that."""
    with Server(pantheon, "-m", model, "--name", "long", "--ctx-cap", "4096") as s:
        o = Opencode(program, os.path.join(folder, "overflow"), s.port, 32768)
        p = o.start("Say hello.")

        def compacted():
            """It has shortened the conversation by a request of its own; its instructions alone are too long, so it would go on like that."""
            answers = [x.split("completions ")[1][:3] for x in s.lines if "POST /v1/chat/completions" in x]
            return p.poll() is not None or ("400" in answers and "200" in answers[answers.index("400"):])
        try:
            until(compacted, "an overflow is recognised", LIMIT)
        finally:
            end(p)
        errors = [e["error"].get("name") for e in o.events() if e["type"] == "error"]
        equal(set(errors), {"ContextOverflowError"}, "overflow: told as what it is")


def main():
    pantheon, _ = clients.arguments(checks, real=False)
    program = os.environ.get("OPENCODE") or os.path.join(clients.folder(pantheon), "node", "node_modules", "opencode-linux-x64-baseline", "bin", "opencode")
    if not os.path.exists(program):
        checks.skip("opencode: not in %s (it is installed on Linux on x86-64; here: %s on %s)" % (os.path.dirname(program), platform.system(), platform.machine()))
        return checks.end()
    try:
        v = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=60, env=clean_env())
        problem = None if v.returncode == 0 else v.stderr.decode(errors="replace")[-200:]
    except (OSError, subprocess.TimeoutExpired) as e:
        problem = str(e)
    if problem:
        checks.skip("opencode: does not run here: %s" % problem)
        return checks.end()
    with tempfile.TemporaryDirectory() as tmp:
        model = clients.long_model(pantheon, tmp)
        checks.section(overflow, pantheon, program, model, tmp)
        checks.section(turn, pantheon, program, model, tmp)
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
