/* SPDX-License-Identifier: AGPL-3.0-only */
/*
 * Linux: O_DIRECT on a descriptor of its own.  What alignment a file wants is told by statx since 6.1
 * (DIOALIGN: include/uapi/linux/stat.h); before that 4096 is right on every device worth streaming from.
 * Some file systems take the flag and refuse the reads, so the first EINVAL clears it.
 * macOS: F_NOCACHE, which wants no alignment.
 */
#include "base/pn_os_direct.h"

#include "base/pn_err.h"

#if PN_ENABLE_FILES && (defined(__linux__) || defined(__APPLE__))

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#if defined(__GLIBC__) && !defined(__LP64__)            /* 64-bit offsets, as in pn_os_posix.c */
#define OSX_O_LARGE O_LARGEFILE
#define osx_pread pread64
#define osx_pwrite pwrite64
#define osx_fstat fstat64
#define osx_fadvise posix_fadvise64
typedef struct stat64 osx_stat_buf;
typedef off64_t osx_off;
#else
#define OSX_O_LARGE 0
#define osx_pread pread
#define osx_pwrite pwrite
#define osx_fstat fstat
#define osx_fadvise posix_fadvise
typedef struct stat osx_stat_buf;
typedef off_t osx_off;
#endif

#if defined(__linux__)

/* Whole blocks of PN_DIRECT_ALIGN suit the file.  struct statx by hand: older libcs have no such fields. */
static bool direct_aligned(int fd)
{
#if defined(SYS_statx)
    enum { DIOALIGN = 0x2000, EMPTY_PATH = 0x1000 };
    struct { uint32_t mask, pad[37], mem_align, offset_align, spare[24]; } x;
    memset(&x, 0, sizeof x);
    if (syscall(SYS_statx, fd, "", EMPTY_PATH, DIOALIGN, &x) == 0 && (x.mask & DIOALIGN))
        return x.offset_align && x.offset_align <= PN_DIRECT_ALIGN && x.mem_align <= PN_DIRECT_ALIGN;
#else
    (void)fd;
#endif
    return true;
}

static bool direct_begin(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    return direct_aligned(fd) && flags != -1 && fcntl(fd, F_SETFL, flags | O_DIRECT) == 0;
}

static void direct_end(int fd)
{
    int flags = fcntl(fd, F_GETFL);
    if (flags != -1)
        fcntl(fd, F_SETFL, flags & ~O_DIRECT);
}

static void direct_forget(int fd, uint64_t offset, uint64_t n) { osx_fadvise(fd, (osx_off)offset, (osx_off)n, POSIX_FADV_DONTNEED); }

PN_INTERNAL void pn_os_huge(void *p, size_t n)
{
#if defined(MADV_HUGEPAGE)
    uintptr_t from = (uintptr_t)pn_align_up((uintptr_t)p, PN_HUGE_PAGE), to = ((uintptr_t)p + n) & ~(uintptr_t)(PN_HUGE_PAGE - 1);
    if (to > from)
        madvise((void *)from, to - from, MADV_HUGEPAGE);
#else
    (void)p, (void)n;
#endif
}

/* Whole pages of the block's inside alone: at its ends the allocator may have something of its own. */
PN_INTERNAL void pn_os_give_back(void *p, size_t n)
{
    uintptr_t from = (uintptr_t)pn_align_up((uintptr_t)p, PN_DIRECT_ALIGN), to = ((uintptr_t)p + n) & ~(uintptr_t)(PN_DIRECT_ALIGN - 1);
    if (p && to > from)
        madvise((void *)from, to - from, MADV_DONTNEED);
}

#else

static bool direct_begin(int fd) { return fcntl(fd, F_NOCACHE, 1) != -1; }
static void direct_end(int fd) { fcntl(fd, F_NOCACHE, 0); }
static void direct_forget(int fd, uint64_t offset, uint64_t n) { (void)fd, (void)offset, (void)n; }
PN_INTERNAL void pn_os_huge(void *p, size_t n) { (void)p, (void)n; }
PN_INTERNAL void pn_os_give_back(void *p, size_t n) { (void)p, (void)n; }

#endif

PN_INTERNAL pn_status pn_os_direct_open(pn_os_direct *f, const char *path, const pn_os_file *like, pn_err *err)
{
    osx_stat_buf was, is;
    int fd;
    f->fd = -1;
    do
        fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | OSX_O_LARGE);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return pn_fail(err, PN_E_IO, "cannot open '%s' a second time (errno %d)", path, errno);
    if (osx_fstat(like->fd, &was) != 0 || osx_fstat(fd, &is) != 0 || was.st_dev != is.st_dev || was.st_ino != is.st_ino) {
        close(fd);
        return pn_fail(err, PN_E_IO, "'%s' was replaced by another file", path);
    }
    f->fd = fd;
    f->size = like->size;
    atomic_init(&f->direct, direct_begin(fd));
    return PN_OK;
}

PN_INTERNAL void pn_os_direct_close(pn_os_direct *f)
{
    if (f->fd >= 0)
        close(f->fd);
    f->fd = -1;
}

static void direct_give_up(pn_os_direct *f)
{
    direct_end(f->fd);
    atomic_store(&f->direct, false);
}

PN_INTERNAL pn_status pn_os_direct_read(pn_os_direct *f, uint64_t offset, void *dst, size_t n, size_t need, pn_err *err)
{
    size_t have = 0;
    if (f->fd < 0 || offset > INT64_MAX || n > INT64_MAX - offset)
        return pn_fail(err, PN_E_IO, f->fd < 0 ? "the file is closed" : "the offset is beyond any file");
    while (have < need) {
        bool direct = atomic_load(&f->direct);
        ssize_t got = osx_pread(f->fd, (uint8_t *)dst + have, n - have, (osx_off)(offset + have));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0 && errno == EINVAL && direct) {
            direct_give_up(f);
            continue;
        }
        if (got < 0)
            return pn_fail(err, PN_E_IO, "reading %zu bytes at offset %" PRIu64 ": %s (errno %d)", need - have, offset + have,
                           errno == EIO ? "the device reports an input/output error" : "the system refused", errno);
        if (got == 0)
            return pn_fail(err, PN_E_IO, "the file ends at byte %" PRIu64 ", %zu more were expected", offset + have, need - have);
        have += (size_t)got;
        if (have >= need || !direct || have % PN_DIRECT_ALIGN == 0)
            continue;
        if (got < PN_DIRECT_ALIGN)              /* the next one would have to begin at a multiple again */
            direct_give_up(f);
        else
            have = have / PN_DIRECT_ALIGN * PN_DIRECT_ALIGN;
    }
    if (!atomic_load(&f->direct))
        direct_forget(f->fd, offset, n);
    return PN_OK;
}

static pn_status direct_open(pn_os_direct *f, const char *path, int flags, pn_err *err)
{
    osx_stat_buf st;
    int fd;
    f->fd = -1;
    f->size = 0;
    do
        fd = open(path, flags | O_CLOEXEC | O_NONBLOCK | OSX_O_LARGE, 0600);
    while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return pn_fail(err, errno == ENOSPC || errno == EDQUOT ? PN_E_BUDGET : PN_E_IO, "cannot open '%s' (errno %d)", path, errno);
    if (osx_fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return pn_fail(err, PN_E_IO, "cannot open '%s': not a regular file", path);
    }
    f->fd = fd;
    f->size = (uint64_t)st.st_size;
    atomic_init(&f->direct, direct_begin(fd));
    return PN_OK;
}

PN_INTERNAL pn_status pn_os_direct_open_alone(pn_os_direct *f, const char *path, pn_err *err) { return direct_open(f, path, O_RDONLY, err); }

/* For this user alone: it holds what people said. */
PN_INTERNAL pn_status pn_os_direct_create(pn_os_direct *f, const char *path, pn_err *err)
{
    return direct_open(f, path, O_RDWR | O_CREAT | O_EXCL, err);
}

PN_INTERNAL pn_status pn_os_direct_write(pn_os_direct *f, uint64_t offset, const void *src, size_t n, pn_err *err)
{
    const uint8_t *p = src;
    size_t have = 0;
    if (f->fd < 0 || offset > INT64_MAX || n > INT64_MAX - offset)
        return pn_fail(err, PN_E_IO, f->fd < 0 ? "the file is closed" : "the offset is beyond any file");
    while (have < n) {
        bool direct = atomic_load(&f->direct);
        ssize_t put = osx_pwrite(f->fd, p + have, n - have, (osx_off)(offset + have));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0 && errno == EINVAL && direct) {
            direct_give_up(f);
            continue;
        }
        if (put <= 0) {
            bool full = put == 0 || errno == ENOSPC || errno == EDQUOT || errno == EFBIG;
            return pn_fail(err, full ? PN_E_BUDGET : PN_E_IO, "writing %zu bytes at offset %" PRIu64 ": %s (errno %d)", n - have,
                           offset + have, full ? "no space left on the device" : "the system refused", put ? errno : ENOSPC);
        }
        have += (size_t)put;
        if (direct && have < n && have % PN_DIRECT_ALIGN)       /* the next one would have to begin at a multiple */
            direct_give_up(f);
    }
    f->size = PN_MAX(f->size, offset + n);
    return PN_OK;
}

PN_INTERNAL pn_status pn_os_direct_flush(pn_os_direct *f, pn_err *err)
{
    if (f->fd < 0 || atomic_load(&f->direct))
        return PN_OK;
    if (fsync(f->fd) != 0 && errno != EINVAL && errno != ENOTSUP)
        return pn_fail(err, errno == ENOSPC || errno == EDQUOT ? PN_E_BUDGET : PN_E_IO, "writing a file to its end (errno %d)", errno);
    direct_forget(f->fd, 0, f->size);
    return PN_OK;
}

PN_INTERNAL void pn_os_drop_cache(const pn_os_file *f, const void *map, uint64_t offset, uint64_t n)
{
    if (map)
        madvise((void *)((uintptr_t)map + (uintptr_t)offset), (size_t)n, MADV_DONTNEED);
    if (f->fd >= 0)
        direct_forget(f->fd, offset, n);
}

#undef OSX_O_LARGE
#undef osx_pread
#undef osx_pwrite
#undef osx_fstat
#undef osx_fadvise

#else

PN_INTERNAL pn_status pn_os_direct_open(pn_os_direct *f, const char *path, const pn_os_file *like, pn_err *err)
{
    (void)path, (void)like;
    f->fd = -1;
    return pn_fail(err, PN_E_UNSUPPORTED, "this build has no files");
}

PN_INTERNAL void pn_os_direct_close(pn_os_direct *f) { f->fd = -1; }

PN_INTERNAL pn_status pn_os_direct_read(pn_os_direct *f, uint64_t offset, void *dst, size_t n, size_t need, pn_err *err)
{
    (void)f, (void)offset, (void)dst, (void)n, (void)need;
    return pn_fail(err, PN_E_UNSUPPORTED, "this build has no files");
}

PN_INTERNAL void pn_os_huge(void *p, size_t n) { (void)p, (void)n; }
PN_INTERNAL void pn_os_give_back(void *p, size_t n) { (void)p, (void)n; }
static pn_status direct_none(pn_os_direct *f, pn_err *err)
{
    f->fd = -1;
    return pn_fail(err, PN_E_UNSUPPORTED, "this build has no files");
}

PN_INTERNAL pn_status pn_os_direct_open_alone(pn_os_direct *f, const char *path, pn_err *err)
{
    (void)path;
    return direct_none(f, err);
}

PN_INTERNAL pn_status pn_os_direct_create(pn_os_direct *f, const char *path, pn_err *err)
{
    (void)path;
    return direct_none(f, err);
}

PN_INTERNAL pn_status pn_os_direct_write(pn_os_direct *f, uint64_t offset, const void *src, size_t n, pn_err *err)
{
    (void)offset, (void)src, (void)n;
    return direct_none(f, err);
}

PN_INTERNAL pn_status pn_os_direct_flush(pn_os_direct *f, pn_err *err) { return direct_none(f, err); }
PN_INTERNAL void pn_os_drop_cache(const pn_os_file *f, const void *map, uint64_t offset, uint64_t n) { (void)f, (void)map, (void)offset, (void)n; }

#endif
