/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * pn_os_posix.c - files and the clock, the same on every POSIX system we know.
 *
 * Reading is by position (pread), so threads share a descriptor without a lock.  Writing goes to a
 * new file beside the target which is renamed over it at the end: a reader sees the old file or the
 * whole new one, and a full disk leaves the old one alone.
 *
 * Every descriptor is close-on-exec.  Interrupted and short transfers are continued.  Messages name
 * errors by our own short table: strerror() is neither thread-safe everywhere nor free of the
 * process's locale.
 */
#include "base/pn_os.h"

#if PN_ENABLE_FILES && (defined(__linux__) || defined(__APPLE__))

#include "base/pn_err.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Files above 2 GiB on 32-bit glibc need the 64-bit names; everywhere else off_t is 64 bits. */
#if defined(__GLIBC__) && !defined(__LP64__)
#define OSF_O_LARGE O_LARGEFILE
#define osf_pread pread64
#define osf_fstat fstat64
#define osf_stat stat64
typedef struct stat64 osf_stat_buf;
typedef off64_t osf_off;
#else
#define OSF_O_LARGE 0
#define osf_pread pread
#define osf_fstat fstat
#define osf_stat stat
typedef struct stat osf_stat_buf;
typedef off_t osf_off;
#endif

/* One transfer moves at most this much; Linux stops at 2 GiB anyway, macOS refuses more. */
#define OSF_CHUNK ((size_t)1 << 30)

static const char *osf_errno_text(int e)
{
    switch (e) {
    case ENOENT: return "no such file or directory";
    case ENOTDIR: return "a part of the path is not a directory";
    case EACCES: case EPERM: return "permission denied";
    case EISDIR: return "is a directory";
    case EMFILE: case ENFILE: return "too many open files";
    case ENAMETOOLONG: return "name too long";
    case ELOOP: return "too many symbolic links";
    case ENOSPC: case EDQUOT: return "no space left on the device";
    case EROFS: return "the file system is read-only";
    case EIO: return "the device reports an input/output error";
    case ENOMEM: return "not enough memory or address space";
    case EFBIG: return "file too large";
    case EEXIST: return "already exists";
    case ENODEV: return "the file system cannot map files";
    default: return "the system refused";
    }
}

/* "<what> '<path>': <reason> (errno N)". */
static pn_status osf_fail(pn_err *err, const char *what, const char *path, int e)
{
    return pn_fail(err, e == ENOMEM ? PN_E_NOMEM : PN_E_IO, "%s '%s': %s (errno %d)", what, path,
                   osf_errno_text(e), e);
}

/* ------------------------------------------------------------------------------------------
 * Reading
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_os_open(pn_os_file *f, const char *path, pn_err *err)
{
    osf_stat_buf st;
    int fd;
    f->fd = -1;
    f->size = 0;
    /* O_NONBLOCK: a FIFO would keep us waiting for a writer; regular files do not care. */
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | OSF_O_LARGE);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return osf_fail(err, "cannot open", path, errno);
    if (osf_fstat(fd, &st) != 0) {
        int e = errno;
        close(fd);
        return osf_fail(err, "cannot inspect", path, e);
    }
    if (!S_ISREG(st.st_mode)) {
        close(fd);
        return pn_fail(err, PN_E_IO, "cannot open '%s': %s, not a regular file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    return PN_OK;
}

PN_INTERNAL bool pn_os_same_file(const char *a, const char *b)
{
    osf_stat_buf x, y;
    return osf_stat(a, &x) == 0 && osf_stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

PN_INTERNAL void pn_os_close(pn_os_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
    f->size = 0;
}

PN_INTERNAL pn_status pn_os_read(const pn_os_file *f, uint64_t offset, void *dst, size_t n, pn_err *err)
{
    uint8_t *p = dst;
    if (f->fd < 0)
        return pn_fail(err, PN_E_IO, "the file is closed");
    if (offset > INT64_MAX || n > INT64_MAX - offset)
        return pn_fail(err, PN_E_IO, "no file has %zu bytes at offset %" PRIu64, n, offset);
    while (n > 0) {
        ssize_t got = osf_pread(f->fd, p, PN_MIN(n, OSF_CHUNK), (osf_off)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return pn_fail(err, PN_E_IO, "reading %zu bytes at offset %" PRIu64 ": %s (errno %d)", n, offset,
                           osf_errno_text(errno), errno);
        if (got == 0)
            return pn_fail(err, PN_E_IO, "the file ends at byte %" PRIu64 ", %zu more were expected", offset, n);
        p += got;
        offset += (uint64_t)got;
        n -= (size_t)got;
    }
    return PN_OK;
}

PN_INTERNAL pn_status pn_os_map(const pn_os_file *f, const void **addr, pn_err *err)
{
    if (f->fd < 0)
        return pn_fail(err, PN_E_IO, "the file is closed");
    if (f->size == 0)
        return pn_fail(err, PN_E_IO, "the file is empty: nothing to map");
    if (f->size > SIZE_MAX / 2)
        return pn_fail(err, PN_E_UNSUPPORTED, "%" PRIu64 " bytes do not fit the address space", f->size);
    void *p = mmap(NULL, (size_t)f->size, PROT_READ, MAP_SHARED, f->fd, 0);
    if (p == MAP_FAILED)
        return pn_fail(err, errno == ENOMEM ? PN_E_NOMEM : PN_E_IO, "mapping %" PRIu64 " bytes: %s (errno %d)",
                       f->size, osf_errno_text(errno), errno);
    *addr = p;
    return PN_OK;
}

PN_INTERNAL void pn_os_unmap(const void *addr, uint64_t size)
{
    if (addr)
        munmap((void *)(uintptr_t)addr, (size_t)size);
}

PN_INTERNAL void *pn_os_pages_take(size_t size)
{
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANON, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

PN_INTERNAL void pn_os_pages_give(void *ptr, size_t size) { munmap(ptr, size); }

/* ------------------------------------------------------------------------------------------
 * Writing
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_os_create(pn_os_out *o, const char *path, pn_err *err)
{
    osf_stat_buf st;
    memset(o, 0, sizeof *o);
    o->fd = -1;
    /* Renaming over /dev/null or a directory would be a disaster or a late surprise. */
    if (osf_stat(path, &st) == 0 && !S_ISREG(st.st_mode))
        return pn_fail(err, PN_E_INVALID, "cannot write '%s': it exists and is not a regular file", path);
    for (int attempt = 0; attempt < 16; attempt++) {
        int n = snprintf(o->tmp, sizeof o->tmp, "%s.%08" PRIx32 ".tmp", path, (uint32_t)pn_os_entropy());
        if (n < 0 || (size_t)n >= sizeof o->tmp) {
            o->tmp[0] = 0;
            return pn_fail(err, PN_E_INVALID, "cannot write: the path has %zu bytes, at most %zu are possible",
                           strlen(path), sizeof o->tmp - 14);
        }
        o->fd = open(o->tmp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | OSF_O_LARGE, 0666);
        if (o->fd >= 0 || (errno != EEXIST && errno != EINTR))
            break;
    }
    if (o->fd < 0) {
        int e = errno;
        o->tmp[0] = 0;
        return osf_fail(err, "cannot create a file beside", path, e);
    }
    o->path = path;
    return PN_OK;
}

PN_INTERNAL pn_status pn_os_write(pn_os_out *o, const void *bytes, size_t n, pn_err *err)
{
    const uint8_t *p = bytes;
    if (o->fd < 0)
        return pn_fail(err, PN_E_STATE, "writing to a file that is not open");
    while (n > 0) {
        ssize_t put = write(o->fd, p, PN_MIN(n, OSF_CHUNK));
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return pn_fail(err, PN_E_IO, "writing '%s' at byte %" PRIu64 ": %s (errno %d)", o->path, o->written,
                           osf_errno_text(put < 0 ? errno : EIO), put < 0 ? errno : EIO);
        p += put;
        n -= (size_t)put;
        o->written += (uint64_t)put;
    }
    return PN_OK;
}

/* Data first, then the name: after a power cut the name must not point at holes. */
PN_INTERNAL pn_status pn_os_commit(pn_os_out *o, pn_err *err)
{
    if (o->fd < 0)
        return pn_fail(err, PN_E_STATE, "committing a file that is not open");
    int bad = 0;
    if (fsync(o->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        bad = errno;
    if (close(o->fd) != 0 && errno != EINTR && !bad)    /* where a network disk tells that it is full */
        bad = errno;
    o->fd = -1;
    if (!bad && rename(o->tmp, o->path) != 0)
        bad = errno;
    if (bad) {
        unlink(o->tmp);
        o->tmp[0] = 0;
        return osf_fail(err, "cannot finish", o->path, bad);
    }
    o->tmp[0] = 0;
    return PN_OK;
}

PN_INTERNAL void pn_os_abandon(pn_os_out *o)
{
    if (o->fd >= 0)
        close(o->fd);
    o->fd = -1;
    if (o->tmp[0])
        unlink(o->tmp);
    o->tmp[0] = 0;
}

PN_INTERNAL double pn_os_now(void)
{
    struct timespec t;
    if (clock_gettime(CLOCK_MONOTONIC, &t) != 0)
        return 0;
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

#undef OSF_O_LARGE
#undef OSF_CHUNK
#undef osf_pread
#undef osf_fstat
#undef osf_stat

#endif /* PN_ENABLE_FILES && POSIX */
