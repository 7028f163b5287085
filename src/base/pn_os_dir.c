/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_os_dir.h"

#include "base/pn_err.h"

#if PN_ENABLE_FILES && (defined(__linux__) || defined(__APPLE__))

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#if defined(__GLIBC__) && !defined(__LP64__)            /* 64-bit sizes and inodes, as in pn_os_posix.c */
#define osd_fstatat fstatat64
#define osd_readdir readdir64
#define osd_statvfs statvfs64
typedef struct stat64 osd_stat_buf;
typedef struct dirent64 osd_dirent;
typedef struct statvfs64 osd_statvfs_buf;
#else
#define osd_fstatat fstatat
#define osd_readdir readdir
#define osd_statvfs statvfs
typedef struct stat osd_stat_buf;
typedef struct dirent osd_dirent;
typedef struct statvfs osd_statvfs_buf;
#endif

static pn_status osd_fail(pn_err *err, const char *what, const char *path)
{
    return pn_fail(err, PN_E_IO, "%s '%s' (errno %d)", what, path, errno);
}

PN_INTERNAL pn_status pn_os_dir_make(const char *path, pn_err *err)
{
    osd_stat_buf st;
    if (mkdir(path, 0700) == 0)
        return PN_OK;
    if (errno != EEXIST)
        return osd_fail(err, "cannot make the directory", path);
    if (osd_fstatat(AT_FDCWD, path, &st, 0) != 0)
        return osd_fail(err, "cannot inspect", path);
    return S_ISDIR(st.st_mode) ? PN_OK : pn_fail(err, PN_E_INVALID, "'%s' is not a directory", path);
}

PN_INTERNAL bool pn_os_is_dir(const char *path)
{
    osd_stat_buf st;
    return osd_fstatat(AT_FDCWD, path, &st, 0) == 0 && S_ISDIR(st.st_mode);
}

static uint64_t osd_modified(const osd_stat_buf *st)
{
#if defined(__APPLE__)
    const struct timespec t = st->st_mtimespec;
#else
    const struct timespec t = st->st_mtim;
#endif
    return t.tv_sec < 0 ? 0 : (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

PN_INTERNAL pn_status pn_os_dir_each(const char *path, pn_os_dir_see see, void *user, pn_err *err)
{
    osd_stat_buf st;
    DIR *d = opendir(path);
    if (!d)
        return osd_fail(err, "cannot read the directory", path);
    bool more = true;
    for (osd_dirent *e; more && (e = osd_readdir(d)) != NULL;)
        if (osd_fstatat(dirfd(d), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            more = see(user, e->d_name, (uint64_t)st.st_size, osd_modified(&st));
    closedir(d);
    return PN_OK;
}

PN_INTERNAL uint64_t pn_os_dir_free(const char *path)
{
    osd_statvfs_buf v;
    return osd_statvfs(path, &v) == 0 && v.f_blocks ? pn_mul_sat(v.f_bavail, v.f_frsize) : UINT64_MAX;
}

PN_INTERNAL bool pn_os_rename(const char *from, const char *to) { return rename(from, to) == 0; }
PN_INTERNAL bool pn_os_remove(const char *path) { return unlink(path) == 0; }
PN_INTERNAL void pn_os_touch(const char *path) { (void)utimensat(AT_FDCWD, path, NULL, 0); }

#undef osd_fstatat
#undef osd_readdir
#undef osd_statvfs

#else

static pn_status osd_none(pn_err *err) { return pn_fail(err, PN_E_UNSUPPORTED, "this build has no files"); }

PN_INTERNAL pn_status pn_os_dir_make(const char *path, pn_err *err)
{
    (void)path;
    return osd_none(err);
}

PN_INTERNAL bool pn_os_is_dir(const char *path)
{
    (void)path;
    return false;
}

PN_INTERNAL pn_status pn_os_dir_each(const char *path, pn_os_dir_see see, void *user, pn_err *err)
{
    (void)path, (void)see, (void)user;
    return osd_none(err);
}

PN_INTERNAL uint64_t pn_os_dir_free(const char *path)
{
    (void)path;
    return 0;
}

PN_INTERNAL bool pn_os_rename(const char *from, const char *to)
{
    (void)from, (void)to;
    return false;
}

PN_INTERNAL bool pn_os_remove(const char *path)
{
    (void)path;
    return false;
}

PN_INTERNAL void pn_os_touch(const char *path) { (void)path; }

#endif
