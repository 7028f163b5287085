#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""Compare the plan of a model with the peak memory of a run that fills its context.

    python3 plan_peak.py PANTHEON NAME MODEL CTX BATCH [FLAGS of plan and run]

Prints one line and exits with 0 (agrees), 1 (differs, or something failed) or 75 (cannot be
measured here).  The bar: 5 % of the plan or 16 MiB, whichever is more.

What is measured is the peak resident size of the process as the kernel accounts it: heap, stacks
and the mapped weights it touched.  The same number of a process that only prints its version is
subtracted; that is program text and libc, which no plan is about.

ru_maxrss has a trap: on execve() the kernel folds the peak of the memory map that is thrown away
into it, so a program started from Python appears as large as Python.  Hence the detour: a shell
starts the program in the background and exits, and this process, declared the "child subreaper",
inherits and waits for it.
"""
import ctypes
import json
import os
import random
import subprocess
import sys
import tempfile

PR_SET_CHILD_SUBREAPER = 36
MIB = 1 << 20
TOLERANCE_SHARE = 0.05
TOLERANCE_BYTES = 16 * MIB


class Unmeasurable(Exception):
    pass


def become_subreaper():
    if not sys.platform.startswith("linux"):
        raise Unmeasurable("needs Linux")
    try:
        ok = ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    except (OSError, AttributeError):
        ok = False
    if not ok:
        raise Unmeasurable("prctl(PR_SET_CHILD_SUBREAPER) is not allowed")


def peak_bytes(argv, out):
    """Peak resident bytes of a command, which must succeed; `out` gets stdout and stderr."""
    script = '"$@" >"$0" 2>&1 </dev/null & echo $!'
    shell = subprocess.Popen(["/bin/sh", "-c", script, out] + argv, stdout=subprocess.PIPE)
    pid = int(shell.stdout.read())
    shell.wait()
    _, status, usage = os.wait4(pid, 0)
    if status != 0:
        with open(out, errors="replace") as f:
            raise RuntimeError("%s: wait status %d: %s" % (" ".join(argv), status, f.read()[-300:].strip()))
    return usage.ru_maxrss * 1024


def refuse_sanitizers(pantheon):
    with open(pantheon, "rb") as f:
        if b"__asan_" in f.read():
            raise Unmeasurable("the program has a sanitizer's own memory in it")


def call(argv):
    r = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True)
    if r.returncode not in (0, 3):      # 3: the plan does not fit this machine
        raise RuntimeError("%s: exit %d: %s" % (" ".join(argv), r.returncode, r.stderr.decode(errors="replace").strip()))
    return r.stdout.decode()


def words(n):
    """The same n words every time; many different ones, so that many embedding rows are read."""
    rng = random.Random(1)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    return ["".join(rng.choice(letters) for _ in range(rng.randint(1, 4))) for _ in range(n)]


def prompt_of(pantheon, model, n_tokens, path):
    """Write the longest prompt of at most n_tokens tokens; return how many it has."""
    text = words(n_tokens)
    low, high, best = 0, len(text), 0
    while low < high:
        mid = (low + high + 1) // 2
        with open(path, "w") as f:
            f.write(" ".join(text[:mid]))
        n = len(json.loads(call([pantheon, "tokenize", "-m", model, "--file", path, "--bos", "--json"])))
        if n <= n_tokens:
            low, best = mid, n
        else:
            high = mid - 1
    with open(path, "w") as f:
        f.write(" ".join(text[:low]))
    return best


def main():
    pantheon, name, model = sys.argv[1:4]
    ctx, batch = int(sys.argv[4]), int(sys.argv[5])
    shape = ["--ctx", str(ctx), "--batch", str(batch), "--threads", "2"] + sys.argv[6:]
    refuse_sanitizers(pantheon)
    become_subreaper()
    with tempfile.TemporaryDirectory() as tmp:
        out, prompt = os.path.join(tmp, "out"), os.path.join(tmp, "prompt")
        plan = json.loads(call([pantheon, "plan", model, "--json"] + shape))
        used = prompt_of(pantheon, model, ctx - 4, prompt)
        base = peak_bytes([pantheon, "--version"], out)
        peak = peak_bytes([pantheon, "run", "-m", model, "--file", prompt, "--max-tokens", str(ctx - used),
                           "--ignore-eos", "--temp", "0"] + shape, out)
        with open(out, errors="replace") as f:
            if "context %d/%d" % (ctx, ctx) not in f.read():
                raise RuntimeError("the run did not fill its context of %d tokens" % ctx)
    planned, measured = plan["total_bytes"], peak - base
    difference = measured - planned
    allowed = max(TOLERANCE_SHARE * planned, TOLERANCE_BYTES)
    good = abs(difference) <= allowed
    print("%s %-14s ctx %4d  batch %3d  planned %8.2f MiB  measured %8.2f MiB  difference %+6.2f MiB (%+.1f %%)"
          % ("ok  " if good else "FAIL", name, ctx, batch, planned / MIB, measured / MIB, difference / MIB,
             100 * difference / planned))
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Unmeasurable as e:
        print("SKIP plan against peak:", e)
        sys.exit(75)
    except (RuntimeError, OSError, ValueError, KeyError) as e:
        print("FAIL %s: %s" % (sys.argv[2] if len(sys.argv) > 2 else "plan_peak", e))
        sys.exit(1)
