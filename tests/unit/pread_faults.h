/*
 * pread_faults.h - a pread() of the test's own, that fails as told.
 *
 * The program's definition comes before libc's, so whatever the library reads by position passes here.
 */
#ifndef PREAD_FAULTS_H
#define PREAD_FAULTS_H

#include <errno.h>
#include <stdatomic.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

typedef struct pread_faults {
    atomic_long calls;
    atomic_long fail_at;        /* the k-th call from 1, 0: never */
    atomic_int fail_errno;
    atomic_bool fail_on;        /* and all that follow */
    atomic_long short_by;       /* no call gets more than this; 0: as it comes */
    atomic_long eintr_every;    /* each k-th call is interrupted */
    atomic_long delay_us;
    atomic_bool refuse_direct;  /* EINVAL where the descriptor says O_DIRECT */
} pread_faults;

static pread_faults faults;

static inline void faults_clear(void)
{
    atomic_store(&faults.calls, 0);
    atomic_store(&faults.fail_at, 0);
    atomic_store(&faults.fail_on, false);
    atomic_store(&faults.short_by, 0);
    atomic_store(&faults.eintr_every, 0);
    atomic_store(&faults.delay_us, 0);
    atomic_store(&faults.refuse_direct, false);
}

#if defined(__linux__) && defined(SYS_pread64) && defined(__LP64__)
#include <fcntl.h>
#define PREAD_FAULTS 1

ssize_t pread(int fd, void *dst, size_t n, off_t offset)
{
    long call = atomic_fetch_add(&faults.calls, 1) + 1, at = atomic_load(&faults.fail_at);
    long every = atomic_load(&faults.eintr_every), most = atomic_load(&faults.short_by), wait = atomic_load(&faults.delay_us);
    if (wait)
        nanosleep(&(struct timespec){.tv_nsec = wait * 1000}, NULL);
    if (every && call % every == 0)
        return errno = EINTR, -1;
    if (at && (call == at || (call > at && atomic_load(&faults.fail_on))))
        return errno = atomic_load(&faults.fail_errno), -1;
    if (atomic_load(&faults.refuse_direct) && (fcntl(fd, F_GETFL) & O_DIRECT))
        return errno = EINVAL, -1;
    return syscall(SYS_pread64, fd, dst, most && n > (size_t)most ? (size_t)most : n, offset);
}
#else
#define PREAD_FAULTS 0
#endif

#endif /* PREAD_FAULTS_H */
