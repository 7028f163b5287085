/*
 * cold_rig.h - a directory for conversations that is empty at first and gone at the end.
 */
#ifndef PN_COLD_RIG_H
#define PN_COLD_RIG_H

#include "cache_rig.h"

#if defined(__unix__) || defined(__APPLE__)
#define COLD_RIG 1
#include <dirent.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char cold_dir[256];

/* Every file in it: seen by `see`, which may be NULL, then removed if it says so. */
static inline int cold_each(int (*see)(const char *path, void *user), void *user)
{
    char path[sizeof cold_dir + 300];
    int n = 0;
    DIR *d = opendir(cold_dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (e->d_name[0] != '.') {
            snprintf(path, sizeof path, "%s/%s", cold_dir, e->d_name);
            n++;
            if (!see || see(path, user))
                remove(path);
        }
    if (d)
        closedir(d);
    return n;
}

static inline int cold_keep(const char *path, void *user)
{
    (void)path, (void)user;
    return 0;
}

static inline int cold_files(void) { return cold_each(cold_keep, NULL); }

static inline int cold_dir_make(const char *under)
{
    snprintf(cold_dir, sizeof cold_dir, "%s/pn_cold_%ld", under, (long)getpid());
    if (mkdir(cold_dir, 0700) != 0)
        return 0;
    return 1;
}

static inline void cold_dir_remove(void)
{
    cold_each(NULL, NULL);
    rmdir(cold_dir);
}

static inline pn_cold_info cold_info(pn_engine *e)
{
    pn_cold_info i;
    pn_engine_cold(e, &i);
    return i;
}

/* Until everything that was queued is written. */
static inline pn_cold_info cold_settled(pn_engine *e)
{
    pn_cold_info i = cold_info(e);
    for (int ms = 0; i.queued_bytes && ms < 20000; ms++, i = cold_info(e))
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    PN_CHECK(!i.queued_bytes, "%u bytes are never written", (unsigned)i.queued_bytes);
    return i;
}

static inline pn_engine_params cold_params(void)
{
    return (pn_engine_params){.n_threads = 1, .session_dir = cold_dir, .session_always = 1};
}

#else
#define COLD_RIG 0
#endif

#endif /* PN_COLD_RIG_H */
