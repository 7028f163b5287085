/*
 * pn_config.h - every compile-time option, its default and its reason.
 *
 * Set them with -DPN_ENABLE_X=0/1.  pn_build_info() tells how a build was configured.
 */
#ifndef PN_CONFIG_H
#define PN_CONFIG_H

/* Threads: 0 builds the single-threaded twin (pn_thread_none.c); nothing needs pthreads then. */
#ifndef PN_ENABLE_THREADS
#define PN_ENABLE_THREADS 1
#endif

/* Files: 0 builds without stdio, mmap and /proc; models come from memory or a read callback. */
#ifndef PN_ENABLE_FILES
#define PN_ENABLE_FILES 1
#endif

/* The server waits with epoll on Linux; 0: with poll, as elsewhere. */
#ifndef PN_ENABLE_EPOLL
#define PN_ENABLE_EPOLL 1
#endif

/* Vector kernels: 0 leaves only the portable reference (smaller, any compiler). */
#ifndef PN_ENABLE_SIMD
#define PN_ENABLE_SIMD 1
#endif

/* Tokens in one KV page.  Part of the canonical order of attention (pages merge in order), so a
 * build with another value gives other last bits.  Power of two. */
#ifndef PN_KV_PAGE_TOKENS
#define PN_KV_PAGE_TOKENS 64
#endif

/* Asserts for our own mistakes; on by default, they are cheap and outside the inner loops. */
#ifndef PN_ENABLE_ASSERT
#define PN_ENABLE_ASSERT 1
#endif

#endif /* PN_CONFIG_H */
