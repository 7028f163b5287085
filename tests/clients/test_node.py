#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_node.py - openai and the AI SDK of npm against our server.

    python3 tests/clients/test_node.py build/pantheon

The packages lie in CLIENTS/node (setup.sh), and what runs there is a copy of node_*.mjs: Node finds packages only
in the folders above a module.
"""
import glob
import json
import os
import re
import shutil
import subprocess
import sys

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "live", "lib"))
import clients  # noqa: E402
from serving import Checks, Server, clean_env  # noqa: E402

checks = Checks()
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def run(s, script, node, names):
    env = clean_env(BASE="http://127.0.0.1:%d" % s.port, MODELS=" ".join(names), TOOLS=json.dumps(clients.TOOLS), AI_SDK_LOG_WARNINGS="false", NO_COLOR="1")
    p = subprocess.run(["node", os.path.basename(script)], cwd=node, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=280)
    lines = ANSI.sub("", p.stdout.decode("utf-8", "replace")).splitlines()
    sums = re.match(r"^(\d+) passed, (\d+) failed$", lines[-1]) if lines else None
    name = os.path.basename(script)
    for line in lines:
        if line.startswith("FAIL"):
            print("FAIL %s:%s" % (name, line[4:]), flush=True)
    if sums:
        checks.passed += int(sums.group(1))
        checks.failed += int(sums.group(2))
    checks.check(sums and (p.returncode != 0) == (int(sums.group(2)) > 0), "%s: comes to its end" % name,
                 None if sums else (p.returncode, lines[-3:], p.stderr.decode("utf-8", "replace")[-600:]))


def main():
    pantheon, served = clients.arguments(checks)
    node = os.path.join(clients.folder(pantheon), "node")
    if not shutil.which("node") or not os.path.isdir(os.path.join(node, "node_modules", "openai")):
        checks.skip("clients of npm: no node, or no packages in %s" % node)
        return checks.end()
    for f in glob.glob(os.path.join(here, "*.mjs")):
        shutil.copy(f, node)
    with Server(pantheon, *(a for name, path in served for a in ("-m", path, "--name", name))) as s:
        for script in sorted(glob.glob(os.path.join(here, "node_*.mjs"))):
            checks.section(run, s, script, node, [name for name, _ in served])
        checks.equal(s.stop(), 0, "the server's exit code")
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
