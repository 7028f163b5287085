#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""stream.py - models larger than memory: how near to the disk's speed, and how far from mmap's.

    python3 tests/bench/stream.py build/pantheon build/tests/bench/bench_stream [--dense F.gguf] [--moe F.gguf] [--tokens 32]

Needs root and a memory controller (cgroup v1 or v2) in which a child may be made.  Of each model N bytes:

    A1   L = 0.5 N         tokens a second >= 0.80 x min(1 / t_compute, B_disk / (N_tok - P)), ids as without a limit
    A2   L = 0.25, 0.77 N  the same, and >= 3 x the mapped weights under the same limit
    A3   L = 0.3 N, MoE    missing experts are read at >= 0.7 x B_disk (bytes over the time with a read under way);
                           random tokens

B_disk is measured here, with plain direct reads of the same file by two threads just before and after (their median),
or while streaming, whichever is faster; t_compute is the time of a step with all weights pinned.  Timings of a busy machine mean little: the load is printed, and above 1
the verdicts are marked.  Exit 1: ids differ, or a bar was missed on a quiet machine.
"""
import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time

MIB = 1 << 20


class Limit:
    """A child group whose memory is limited; bytes None: none."""

    def __init__(self, size):
        v1 = "/sys/fs/cgroup/memory"
        self.dir = self.size = None
        if size is None:
            return
        self.v1 = os.path.exists(v1 + "/memory.limit_in_bytes")
        root = v1 if self.v1 else "/sys/fs/cgroup"
        self.dir = "%s/pn_stream_%d" % (root, os.getpid())
        os.makedirs(self.dir, exist_ok=True)
        with open(self.dir + ("/memory.limit_in_bytes" if self.v1 else "/memory.max"), "w") as f:
            f.write(str(int(size)))

    def enter(self):
        if self.dir:
            with open(self.dir + "/cgroup.procs", "w") as f:
                f.write(str(os.getpid()))

    def peak(self):
        try:
            return int(open(self.dir + ("/memory.max_usage_in_bytes" if self.v1 else "/memory.peak")).read()) if self.dir else 0
        except OSError:
            return 0

    def close(self):
        for _ in range(50):
            try:
                return os.rmdir(self.dir) if self.dir else None
            except OSError:
                time.sleep(0.1)


def drop(path):
    """Nothing of the file is left in the page cache."""
    fd = os.open(path, os.O_RDONLY)
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(fd)


def disk(path, seconds=1.0):
    """Bytes a second of direct reads of 4 MiB by two threads."""
    fd, size, got, began = os.open(path, os.O_RDONLY | os.O_DIRECT), os.path.getsize(path), [0, 0], time.monotonic()

    def read(me):
        buf, at = mmap.mmap(-1, 4 * MIB), me * (size // 8 // MIB * 4 * MIB)
        buf.madvise(mmap.MADV_HUGEPAGE)
        while time.monotonic() - began < seconds:
            at = at + 4 * MIB if at + 8 * MIB <= size else 0
            got[me] += os.preadv(fd, [buf], at)

    both = [threading.Thread(target=read, args=(i,)) for i in (0, 1)]
    for t in both:
        t.start()
    for t in both:
        t.join()
    os.close(fd)
    return sum(got) / (time.monotonic() - began)


def run(a, path, mode, pin, experts, limit=None, tokens=None, random=False):
    drop(path)
    group = Limit(limit)
    args = [a.bench, path, mode, str(int(pin)), str(int(experts)), str(tokens or a.tokens), str(a.threads)] + (["random"] if random else [])
    late = mode == "map" and limit      # mapped weights that do not fit are refused: what if they were not?
    if late:
        args.append("join=%s/cgroup.procs" % group.dir)
    p = subprocess.run(args, preexec_fn=None if late else group.enter, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=a.timeout)
    peak = group.peak()
    group.close()
    if p.returncode:
        return {"failed": "%d: %s" % (p.returncode, p.stderr.decode()[-200:])}
    return dict(json.loads(p.stdout.decode()), peak=peak)


def plan(a, path, *flags):
    return json.loads(subprocess.run([a.pantheon, "plan", "-m", path, "--residency", "stream", "--ctx", "128", "--batch", "16", "--json"] + list(flags),
                                     stdout=subprocess.PIPE, check=False).stdout)


class Bars:
    def __init__(self):
        self.missed = 0

    def check(self, what, ok, text):
        busy = os.getloadavg()[0] > 3        # two of it are the benchmark itself
        print("  %-6s %s%s: %s" % (what, "met" if ok else "MISSED", " (busy machine, load %.1f)" % os.getloadavg()[0] if busy else "", text), flush=True)
        self.missed += not ok and (not busy or what == "ids")


def dense(a, path, bars):
    n = os.path.getsize(path)
    whole = run(a, path, "stream", n * 2, 0)
    least = plan(a, path)["total_bytes"] + 12 * MIB     # the program itself, and what the kernel charges for it
    print("%s: N = %.0f MiB, t_compute %.1f ms" % (os.path.basename(path), n / MIB, 1000 / whole["tps"]))
    for name, share in (("A1", 0.5), ("A2", 0.25), ("A2", 0.77)):
        limit, pin = share * n, max(0, share * n - least)
        before = disk(path)
        r = run(a, path, "stream", pin, 0, limit)
        b = max(statistics.median([before, disk(path)]), r.get("disk", 0))
        if "failed" in r:
            bars.check("ids", False, "L = %.2f N: %s" % (share, r["failed"]))
            continue
        bound = min(whole["tps"], b / r["step_bytes"] if r["step_bytes"] else 1e9)
        bars.check("ids", r["ids"] == whole["ids"], "L = %.2f N, peak %.0f of %.0f MiB" % (share, r["peak"] / MIB, limit / MIB))
        bars.check(name, r["tps"] >= 0.8 * bound, "L = %.2f N: %.2f t/s, %.2f x the bound %.2f (disk %.2f GB/s, streamed %.0f MiB, pinned %.0f MiB)"
                   % (share, r["tps"], r["tps"] / bound, bound, b / 1e9, r["step_bytes"] / MIB, r["pinned"] / MIB))
        if name == "A2":
            m = run(a, path, "map", 0, 0, limit, max(4, a.tokens // 4))
            if "failed" in m:
                print("  mapped under the same limit: %s" % m["failed"])
            else:
                bars.check("A2", r["tps"] >= 3 * m["tps"], "%.1f x mapped weights (%.2f t/s) under the same limit" % (r["tps"] / m["tps"], m["tps"]))


def moe(a, path, bars):
    n = os.path.getsize(path)
    whole = run(a, path, "map", 0, 0, random=True)
    floor = plan(a, path, "--pin-bytes", str(n))
    pin = floor["pinned_bytes"]
    experts = 0.3 * n - (floor["total_bytes"] - floor["expert_bytes"]) - 12 * MIB
    print("%s: N = %.0f MiB, %.0f MiB pinned, %.0f MiB of experts" % (os.path.basename(path), n / MIB, pin / MIB, experts / MIB))
    before = disk(path)
    r = run(a, path, "stream", pin, experts, 0.3 * n, random=True)
    b = statistics.median([before, disk(path)])
    if "failed" in r:
        return bars.check("ids", False, r["failed"])
    bars.check("ids", r["ids"] == whole["ids"], "peak %.0f of %.0f MiB, %.0f %% hits" % (r["peak"] / MIB, 0.3 * n / MIB, 100.0 * r["hits"] / (r["hits"] + r["misses"])))
    bars.check("A3", r["disk"] >= 0.7 * b, "misses are read at %.2f GB/s, %.2f x plain direct reads (%.2f); %.2f t/s, mapped without limit %.2f"
               % (r["disk"] / 1e9, r["disk"] / b, b / 1e9, r["tps"], whole["tps"]))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("pantheon")
    p.add_argument("bench")
    p.add_argument("--dense")
    p.add_argument("--moe")
    p.add_argument("--tokens", type=int, default=32)
    p.add_argument("--threads", type=int, default=os.cpu_count())
    p.add_argument("--timeout", type=float, default=600)
    a = p.parse_args()
    bars = Bars()
    print("load %.1f" % os.getloadavg()[0])
    if a.dense:
        dense(a, a.dense, bars)
    if a.moe:
        moe(a, a.moe, bars)
    return 1 if bars.missed else 0


if __name__ == "__main__":
    sys.exit(main())
