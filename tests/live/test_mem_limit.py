#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""test_mem_limit.py - lib/mem_limit.py keeps its word: a limit kills or refuses, and only who exceeds it.

    python3 tests/live/test_mem_limit.py build/pantheon

What other tests conclude from a limit is worth as much as the limit.
run_tests: alone
"""
import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "lib"))
import mem_limit  # noqa: E402
from mem_limit import Group, GroupRlimit, GroupV1, GroupV2, Unlimited  # noqa: E402
from serving import Checks  # noqa: E402

checks = Checks()
check, equal = checks.check, checks.equal
MIB = 1 << 20
# Touches MEGABYTES, says so, and ends when its input does.
HOG = """
import sys
kept = []
for i in range(int(sys.argv[1])):
    kept.append(bytearray(b"x") * (1 << 20))
print("there", flush=True)
sys.stdin.read()
"""


def hog(group, megabytes):
    return group.start([sys.executable, "-c", HOG, str(megabytes)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def groups(way):
    with Group(256 * MIB, [way]) as g:
        folder = g.kind.folder
        p = hog(g, 64)
        equal(p.stdout.readline(), b"there\n", "a process that fits runs")
        check(64 * MIB <= g.usage() < 256 * MIB, "usage is read while it runs", g.usage())
        check(len(g.stat()) > 10, "memory.stat is read", g.stat())
        p.stdin.close()
        r = g.wait(p, 30)
        equal((r.status, r.oom_kills), (0, 0), "and is not killed")
        check(64 * MIB <= r.peak < 256 * MIB, "its peak is known", r.peak)
    check(not os.path.exists(folder), "the group is gone", folder)
    with Group(64 * MIB, [way]) as g:
        p = hog(g, 200)
        r = g.wait(p, 60)
        equal((r.status, r.oom_kills), (-signal.SIGKILL, 1), "a hog is killed")
        check(r.peak <= 64 * MIB, "and never had more than the limit", r.peak)
        g.set_limit(256 * MIB)
        p = hog(g, 100)
        equal(p.stdout.readline(), b"there\n", "a raised limit lets it live")
        g.set_limit(200 * MIB)
        p.stdin.close()
        equal(g.wait(p, 30).status, 0, "and a lowered one above its use too")
        folder = g.kind.folder
        lingerer = g.start([sys.executable, "-c", "import subprocess; subprocess.Popen(['sleep', '600'])"])
        lingerer.wait()
        time.sleep(0.05)
    check(not os.path.exists(folder), "what lingers is killed and the group gone", folder)


def address_space():
    with Group(256 * MIB, [GroupRlimit]) as g:
        p = hog(g, 64)
        equal(p.stdout.readline(), b"there\n", "RLIMIT_AS: a process that fits runs")
        check(g.usage() >= 64 * MIB, "RLIMIT_AS: usage is read while it runs", g.usage())
        p.stdin.close()
        r = g.wait(p, 30)
        check(r.status == 0 and r.peak >= 64 * MIB, "RLIMIT_AS: and is not hurt", str(r))
        p = g.start([sys.executable, "-c", HOG, "400"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL)
        equal(g.wait(p, 30).status, 1, "RLIMIT_AS: a hog gets no memory")


def page_cache():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights")
        with open(path, "wb") as f:
            f.write(os.urandom(8 * MIB))
        if mem_limit.drop_cache(path) != 0:
            checks.skip("the temporary folder is memory itself: no page cache to drop")
            return
        with open(path, "rb") as f:
            f.read()
        equal(mem_limit.cached_bytes(path), 8 * MIB, "a file that was read is cached")
        equal(mem_limit.drop_cache(path), 0, "a dropped one is not")
        os.mkdir(os.path.join(folder, "copy"))
        copy = mem_limit.fresh_copy(path, os.path.join(folder, "copy"))
        equal((mem_limit.cached_bytes(copy), os.path.getsize(copy)), (0, 8 * MIB), "nor is a fresh copy")


def main():
    if not sys.platform.startswith("linux"):
        checks.skip("limits are Linux's")
        return checks.end()
    for way in (GroupV2, GroupV1):
        try:
            Group(256 * MIB, [way]).close()
        except Unlimited as e:
            checks.skip("%s" % e)
            continue
        groups(way)
    address_space()
    page_cache()
    return checks.end()


if __name__ == "__main__":
    sys.exit(main())
