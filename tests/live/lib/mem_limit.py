#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""Run a command under a real memory limit.  Standard library only.

    python3 mem_limit.py LIMIT [--drop FILE]... COMMAND [ARG]...        LIMIT: bytes, or 512M, 2G

or, to do something while it runs:

    with mem_limit.Group(256 << 20) as group:       # raises Unlimited where no way works
        process = group.start(["build/pantheon", "serve", ...])
        group.usage(), group.set_limit(128 << 20)
        result = group.wait(process)                # .status .peak .oom_kills .way

The ways, in this order; `way` says which it was:

    cgroup v2    a child of the nearest group above us that has the memory controller to give
    cgroup v1    a child of our own group in the memory hierarchy
    RLIMIT_AS    of each process by itself: address space, mapped files included.  Nobody is killed, an
                 allocation fails; a program should be told the limit besides

The limit is on memory and swap together: with swap, a limit would only be slow.  In a control group the
page cache counts that its processes were the first to touch, so drop a file's cache before a run
(drop_cache, fresh_copy), or pages charged elsewhere falsify it.

A group is always cleaned up: what still runs in it is killed, and its folder removed.
"""
import ctypes
import mmap
import os
import resource
import shutil
import signal
import subprocess
import sys
import time


class Unlimited(Exception):
    """No limit can be set here, and why."""


class Result:
    def __init__(self, way, status, peak, oom_kills):
        self.way = way                  # how it was limited
        self.status = status            # as subprocess has it: -9 is a kill
        self.peak = peak                # bytes: of the group, page cache included; RLIMIT_AS: resident
        self.oom_kills = oom_kills      # processes the kernel killed for this limit

    def __str__(self):
        return "%s: status %d, peak %.1f MiB, %d killed" % (self.way, self.status, self.peak / 2**20, self.oom_kills)


# --- files ------------------------------------------------------------------------------------------

def cached_bytes(path):
    """How much of a file is in the page cache."""
    size = os.path.getsize(path)
    if size == 0:
        return 0
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
    vector = ctypes.create_string_buffer(pages)
    with open(path, "rb") as f, mmap.mmap(f.fileno(), size, access=mmap.ACCESS_COPY) as m:
        start = ctypes.c_char.from_buffer(m)
        failed = libc.mincore(ctypes.addressof(start), size, vector) != 0
        del start                       # or the map cannot be closed
    if failed:
        raise OSError(ctypes.get_errno(), "mincore", path)
    return sum(byte & 1 for byte in vector.raw) * mmap.PAGESIZE


def drop_cache(path):
    """Give up a file's page cache.  Returns the bytes that stayed: somebody maps them."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)                    # dirty pages would stay
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    return cached_bytes(path)


def fresh_copy(path, folder):
    """A copy that nobody has mapped or read yet, for files whose cache cannot be dropped."""
    copy = os.path.join(folder, os.path.basename(path))
    shutil.copyfile(path, copy)
    drop_cache(copy)
    return copy


# --- control groups ---------------------------------------------------------------------------------

def read(path, otherwise=None):
    try:
        with open(path) as f:
            return f.read()
    except OSError:
        return otherwise


def write(path, text):
    with open(path, "w") as f:
        f.write(str(text))


def table(path):
    """{name: number} of a text of "name number" lines."""
    rows = [line.split() for line in read(path, "").splitlines()]
    return {r[0]: int(r[1]) for r in rows if len(r) == 2 and r[1].isdigit()}


def own_group(version):
    """(mount point, our group's folder) of the memory hierarchy of this version; None without one."""
    mount = root = None
    for line in read("/proc/self/mountinfo", "").splitlines():
        left, _, right = line.partition(" - ")
        kind, _, options = right.split(" ", 2)
        if (kind == "cgroup2") if version == 2 else (kind == "cgroup" and "memory" in options.split(",")):
            root, mount = left.split()[3:5]
            break
    for line in read("/proc/self/cgroup", "").splitlines() if mount else []:
        _, controllers, path = line.split(":", 2)
        if (controllers == "") if version == 2 else ("memory" in controllers.split(",")):
            below = path[len(root.rstrip("/")):] if path.startswith(root.rstrip("/") + "/") else ""
            folder = os.path.normpath(mount + "/" + below)
            return mount, folder if os.path.isdir(folder) else mount
    return None


class GroupV2:
    USAGE, PEAK, LIMIT = "memory.current", "memory.peak", "memory.max"

    def __init__(self, name):
        mount, base = own_group(2) or (None, None)
        while mount:
            if "memory" in read(base + "/cgroup.controllers", "").split():
                try:
                    if "memory" not in read(base + "/cgroup.subtree_control", "").split():
                        write(base + "/cgroup.subtree_control", "+memory")
                    self.folder = os.path.join(base, name)
                    os.mkdir(self.folder)
                    self.way = "cgroup v2 " + self.folder
                    return
                except OSError:
                    pass                # busy, or not ours: a group above may do
            if base == mount:
                break
            base = os.path.dirname(base)
        raise Unlimited("no version 2 group with the memory controller to give")

    def set_limit(self, limit):
        if os.path.exists(self.folder + "/memory.swap.max"):
            write(self.folder + "/memory.swap.max", 0)
        write(self.folder + "/memory.max", limit)

    def oom_kills(self):
        return table(self.folder + "/memory.events").get("oom_kill", 0)


class GroupV1:
    USAGE, PEAK, LIMIT = "memory.usage_in_bytes", "memory.max_usage_in_bytes", "memory.limit_in_bytes"
    BOTH = "memory.memsw.limit_in_bytes"        # memory and swap; absent where swap is not accounted

    def __init__(self, name):
        _, base = own_group(1) or (None, None)
        if not base:
            raise Unlimited("no version 1 memory hierarchy")
        self.folder = os.path.join(base, name)
        try:
            os.mkdir(self.folder)
        except OSError as e:
            raise Unlimited("%s: %s" % (self.folder, e.strerror)) from e
        self.way = "cgroup v1 " + self.folder

    def set_limit(self, limit):
        names = [n for n in (self.LIMIT, self.BOTH) if os.path.exists(self.folder + "/" + n)]
        now = int(read(self.folder + "/" + self.BOTH, "0"))
        for n in names if limit <= now else reversed(names):    # memory may never exceed memory and swap
            write(self.folder + "/" + n, limit)
        if self.BOTH not in names:
            write(self.folder + "/memory.swappiness", 0)

    def oom_kills(self):
        return table(self.folder + "/memory.oom_control").get("oom_kill", 0)


class GroupRlimit:
    """Not a group: each process for itself."""
    way, folder = "RLIMIT_AS", None

    def set_limit(self, limit):
        pass


# --- running ----------------------------------------------------------------------------------------

class Group:
    """A limit and the processes under it."""

    def __init__(self, limit, ways=(GroupV2, GroupV1, GroupRlimit)):
        reasons = []
        self.processes, self.limit, self.kind = [], limit, None
        for way in ways:
            try:
                kind = way("pn-limit-%d-%d" % (os.getpid(), time.monotonic_ns())) if way is not GroupRlimit else way()
            except Unlimited as e:
                reasons.append(str(e))
                continue
            self.kind = kind
            try:
                self.set_limit(limit)
                break
            except OSError as e:
                reasons.append("%s: %s" % (kind.way, e))
                self.close()
        if not self.kind:
            raise Unlimited("; ".join(reasons))
        self.way = self.kind.way

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _enter(self):
        """In the child, before it becomes the command."""
        if self.kind.folder:
            write(self.kind.folder + "/cgroup.procs", 0)
        else:
            resource.setrlimit(resource.RLIMIT_AS, (self.limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def start(self, argv, **popen):
        process = subprocess.Popen(argv, preexec_fn=self._enter, **popen)
        self.processes.append(process)
        return process

    def set_limit(self, limit):
        """Also while it runs.  Below what is used the kernel first takes page cache, then kills (version 2)
        or refuses with EBUSY (version 1)."""
        self.kind.set_limit(limit)
        self.limit = limit
        if not self.kind.folder:
            for p in self.processes:
                if p.poll() is None:
                    resource.prlimit(p.pid, resource.RLIMIT_AS, (limit, resource.getrlimit(resource.RLIMIT_AS)[1]))

    def usage(self):
        """Bytes now; RLIMIT_AS: resident, of all processes started."""
        if self.kind.folder:
            return int(read(self.kind.folder + "/" + self.kind.USAGE))
        pages = [read("/proc/%d/statm" % p.pid, "0 0").split()[1] for p in self.processes if p.poll() is None]
        return sum(int(n) for n in pages) * mmap.PAGESIZE

    def spare(self):
        """Bytes up to the limit, where page cache of files can go; now, where a server's reading may be a second old."""
        stat = self.stat()
        return self.limit - self.usage() + stat.get("inactive_file", 0) + stat.get("active_file", 0)

    def stat(self):
        """memory.stat as numbers; empty without a control group."""
        return table(self.kind.folder + "/memory.stat") if self.kind.folder else {}

    def wait(self, process, timeout=None):
        """Until the process ends.  Without a peak of the kernel's own, what was seen every 10 ms counts."""
        peak, end = 0, None if timeout is None else time.monotonic() + timeout
        while process.poll() is None:
            peak = max(peak, self.usage())
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(process.args, timeout)
            time.sleep(0.01)
        if not self.kind.folder:
            return Result(self.way, process.returncode, peak, 0)
        peak = int(read(self.kind.folder + "/" + self.kind.PEAK, str(peak)))
        return Result(self.way, process.returncode, peak, self.kind.oom_kills())

    def close(self):
        """Kill what still runs in the group and remove it."""
        kind, self.kind = self.kind, None
        if kind is None:
            return
        for p in self.processes:
            if p.poll() is None:
                p.kill()
                p.wait()
        if not kind.folder:
            return
        for _ in range(500):            # a killed process leaves its group some time after
            for pid in [int(p) for p in read(kind.folder + "/cgroup.procs", "").split()]:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            try:
                os.rmdir(kind.folder)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.01)
        raise OSError("cannot remove " + kind.folder)


def parse_size(text):
    unit = {"K": 10, "M": 20, "G": 30}.get(text[-1:].upper())
    return int(text[:-1]) << unit if unit else int(text)


def main(args):
    if len(args) < 2:
        sys.exit(__doc__)
    limit, args = parse_size(args[0]), args[1:]
    while args[0] == "--drop":
        left = drop_cache(args[1])
        print("%s: page cache dropped, %d bytes stayed" % (args[1], left), file=sys.stderr)
        args = args[2:]
    with Group(limit) as group:
        print(group.way, file=sys.stderr)
        result = group.wait(group.start(args))
        print(result, file=sys.stderr)
    return result.status if result.status >= 0 else 128 - result.status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
