/*
 * pn_os_dir.h - a directory that is ours: make it, see what is in it, rename and remove.
 *
 * Where the build has no files all of it is refused, in the same file.
 */
#ifndef PN_OS_DIR_H
#define PN_OS_DIR_H

#include "base/pn_base.h"

/* For this user alone; one that exists is fine.  Its parent must exist. */
PN_INTERNAL pn_status pn_os_dir_make(const char *path, pn_err *err);

/* There is a directory of that name (links followed). */
PN_INTERNAL bool pn_os_is_dir(const char *path);

/* Every regular file in it, in no order, until `see` says false.  modified: nanoseconds since 1970. */
typedef bool (*pn_os_dir_see)(void *user, const char *name, uint64_t bytes, uint64_t modified);
PN_INTERNAL pn_status pn_os_dir_each(const char *path, pn_os_dir_see see, void *user, pn_err *err);

/* Bytes that this user may still write there; UINT64_MAX: nobody knows. */
PN_INTERNAL uint64_t pn_os_dir_free(const char *path);

PN_INTERNAL bool pn_os_rename(const char *from, const char *to);        /* takes the place of what is there */
PN_INTERNAL bool pn_os_remove(const char *path);                        /* a file */
PN_INTERNAL void pn_os_touch(const char *path);                         /* it was used now */

#endif /* PN_OS_DIR_H */
