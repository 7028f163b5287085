/* SPDX-License-Identifier: AGPL-3.0-only */
#include "serve/pn_net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/pn_hash.h"

#ifdef MSG_NOSIGNAL
#define NET_NOSIGNAL MSG_NOSIGNAL
#else
#define NET_NOSIGNAL 0          /* then SO_NOSIGPIPE does it, see net_prepare */
#endif

/* What the kernel keeps for a client that does not read is memory, too: by itself it would let it grow to
 * megabytes. */
enum { NET_BACKLOG = 1024, NET_SEND_BYTES = 128 << 10 };

static bool net_prepare(int fd)
{
#ifdef SO_NOSIGPIPE
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    int flags = fcntl(fd, F_GETFL);
    return flags >= 0 && fcntl(fd, F_SETFL, flags | O_NONBLOCK) == 0 && fcntl(fd, F_SETFD, FD_CLOEXEC) == 0;
}

/* ------------------------------------------------------------------------------------------
 * Listening
 * ------------------------------------------------------------------------------------------ */

static pn_status net_failed(int fd, const char *address, const char *what, pn_err *err)
{
    int why = errno;
    pn_net_close(fd);
    return pn_fail(err, PN_E_IO, "cannot %s %s: %s", what, address, strerror(why));
}

/* The address of a socket without and with its port. */
static void net_name(const struct sockaddr_storage *a, char *host, size_t cap, unsigned *port)
{
    host[0] = 0;
    *port = 0;
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a;
        inet_ntop(AF_INET, &in->sin_addr, host, (socklen_t)cap);
        *port = ntohs(in->sin_port);
    } else if (a->ss_family == AF_INET6) {
        const struct sockaddr_in6 *in = (const struct sockaddr_in6 *)(const void *)a;
        inet_ntop(AF_INET6, &in->sin6_addr, host, (socklen_t)cap);
        *port = ntohs(in->sin6_port);
    } else {
        snprintf(host, cap, "unix");
    }
}

static void net_bound_name(pn_listener *l)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    char host[64];
    unsigned port;
    memset(&a, 0, sizeof a);
    if (getsockname(l->fd, (struct sockaddr *)&a, &n) != 0)
        return;
    net_name(&a, host, sizeof host, &port);
    l->tcp = a.ss_family == AF_INET || a.ss_family == AF_INET6;
    if (l->tcp)
        snprintf(l->name, sizeof l->name, a.ss_family == AF_INET6 ? "[%s]:%u" : "%s:%u", host, port);
}

static pn_status net_listen_unix(pn_listener *l, const char *address, const char *path, pn_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct stat st;
    if (!path[0] || strlen(path) >= sizeof a.sun_path)
        return pn_fail(err, PN_E_INVALID, "%s: expected a path of 1 to %zu bytes", address, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    l->fd = socket(AF_UNIX, SOCK_STREAM, 0);
    if (l->fd < 0 || !net_prepare(l->fd))
        return net_failed(l->fd, address, "make a socket for", err);
    if (lstat(path, &st) == 0 && S_ISSOCK(st.st_mode)) {
        int probe = socket(AF_UNIX, SOCK_STREAM, 0);
        if (probe >= 0 && connect(probe, (struct sockaddr *)&a, sizeof a) != 0 && errno == ECONNREFUSED)
            unlink(path);               /* its owner is dead */
        pn_net_close(probe);
    }
    if (bind(l->fd, (struct sockaddr *)&a, sizeof a) != 0)
        return net_failed(l->fd, address, "listen on", err);
    memcpy(l->unlink_path, a.sun_path, PN_MIN(sizeof l->unlink_path, sizeof a.sun_path));
    return PN_OK;
}

/* "host:port" or "[v6]:port" into its two parts. */
static bool net_split(const char *address, char host[64], char port[8])
{
    const char *colon = strrchr(address, ':');
    size_t n = colon ? (size_t)(colon - address) : 0;
    if (!colon || n >= 64 + 2 || !colon[1] || strlen(colon + 1) > 5 || strspn(colon + 1, "0123456789") != strlen(colon + 1) || atoi(colon + 1) > 65535)
        return false;
    snprintf(port, 8, "%s", colon + 1);
    bool six = n >= 2 && address[0] == '[' && address[n - 1] == ']';
    if (!six && memchr(address, ':', n))
        return false;
    snprintf(host, 64, "%.*s", (int)(six ? n - 2 : n), address + six);
    return true;
}

static pn_status net_listen_tcp(pn_listener *l, const char *address, pn_err *err)
{
    char host[64], port[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV}, *list;
    if (!net_split(address, host, port))
        return pn_fail(err, PN_E_INVALID, "%s: expected HOST:PORT, [ADDRESS]:PORT, unix:PATH or fd:NUMBER", address);
    int code = getaddrinfo(host[0] ? host : NULL, port, &hints, &list);
    if (code)
        return pn_fail(err, PN_E_IO, "cannot find the address of %s: %s", address, gai_strerror(code));
    int on = 1;
    l->fd = socket(list->ai_family, SOCK_STREAM, 0);
    bool ok = l->fd >= 0 && net_prepare(l->fd) && setsockopt(l->fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
              bind(l->fd, list->ai_addr, list->ai_addrlen) == 0;
    freeaddrinfo(list);
    return ok ? PN_OK : net_failed(l->fd, address, "listen on", err);
}

static pn_status net_listen_fd(pn_listener *l, const char *address, const char *number, pn_err *err)
{
    int accepts = 0;
    socklen_t n = sizeof accepts;
    char *end;
    long fd = strtol(number, &end, 10);
    if (!*number || *end || fd < 0 || fd > 65535)
        return pn_fail(err, PN_E_INVALID, "%s: expected fd: and a number", address);
    if (getsockopt((int)fd, SOL_SOCKET, SO_ACCEPTCONN, &accepts, &n) != 0 || !accepts)
        return pn_fail(err, PN_E_INVALID, "%s is not a listening socket", address);
    l->fd = (int)fd;
    return net_prepare(l->fd) ? PN_OK : net_failed(-1, address, "use", err);
}

PN_INTERNAL pn_status pn_listener_open(pn_listener *l, const char *address, pn_err *err)
{
    *l = (pn_listener){.fd = -1};
    snprintf(l->name, sizeof l->name, "%s", address);
    bool given = strncmp(address, "fd:", 3) == 0;
    pn_status st = given ? net_listen_fd(l, address, address + 3, err)
                   : strncmp(address, "unix:", 5) == 0 ? net_listen_unix(l, address, address + 5, err) : net_listen_tcp(l, address, err);
    if (!st && !given && listen(l->fd, NET_BACKLOG) != 0)
        st = net_failed(l->fd, address, "listen on", err);
    if (st) {
        l->fd = -1;
        return st;
    }
    net_bound_name(l);
    return PN_OK;
}

PN_INTERNAL void pn_listener_close(pn_listener *l)
{
    if (l->fd >= 0 && l->unlink_path[0])
        unlink(l->unlink_path);
    pn_net_close(l->fd);
    l->fd = -1;
}

static bool net_is_local(const struct sockaddr_storage *a)
{
    if (a->ss_family == AF_INET) {
        const struct sockaddr_in *in = (const struct sockaddr_in *)(const void *)a;
        return ntohl(in->sin_addr.s_addr) >> 24 == 127;
    }
    if (a->ss_family == AF_INET6) {
        const struct in6_addr *six = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
        return IN6_IS_ADDR_LOOPBACK(six) || (IN6_IS_ADDR_V4MAPPED(six) && six->s6_addr[12] == 127);
    }
    return true;
}

PN_INTERNAL int pn_listener_accept(const pn_listener *l, pn_peer *peer)
{
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    unsigned port;
    int on = 1, bytes = NET_SEND_BYTES, fd;
    memset(&a, 0, sizeof a);
    do
        fd = accept(l->fd, (struct sockaddr *)&a, &n);
    while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM ? -2 : -1;
    if (!net_prepare(fd)) {
        pn_net_close(fd);
        return -2;
    }
    if (l->tcp)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);       /* an event is worth a packet */
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
    net_name(&a, peer->name, sizeof peer->name, &port);
    peer->local = net_is_local(&a);
    return fd;
}

/* ------------------------------------------------------------------------------------------
 * Calling
 * ------------------------------------------------------------------------------------------ */

static pn_status net_target_unix(pn_target *t, const char *path, pn_err *err)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    _Static_assert(sizeof a <= sizeof t->address, "the address of a socket file fits");
    if (!path[0] || strlen(path) >= sizeof a.sun_path)
        return pn_fail(err, PN_E_INVALID, "unix:%.100s: expected a path of 1 to %zu bytes", path, sizeof a.sun_path - 1);
    memcpy(a.sun_path, path, strlen(path) + 1);
    memcpy(t->address, &a, sizeof a);
    t->len = sizeof a;
    t->family = AF_UNIX;
    snprintf(t->host, sizeof t->host, "localhost");
    return PN_OK;
}

/* `authority`: HOST or HOST:PORT, from http://. */
static pn_status net_target_tcp(pn_target *t, const char *authority, pn_err *err)
{
    char address[96], host[64], port[8];
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV}, *list;
    size_t n = strlen(authority);
    n -= n && authority[n - 1] == '/';
    bool six = n && authority[n - 1] == ']', has_port = !six && memchr(authority, ':', n);
    if (n < sizeof address - 4)
        snprintf(address, sizeof address, has_port ? "%.*s" : "%.*s:80", (int)n, authority);
    if (!n || n >= sizeof address - 4 || strcspn(authority, "/?#@ ") < n || !net_split(address, host, port) || !host[0] || atoi(port) == 0)
        return pn_fail(err, PN_E_INVALID, "http://%.100s: expected http://HOST:PORT", authority);
    int code = getaddrinfo(host, port, &hints, &list);
    if (code)
        return pn_fail(err, PN_E_IO, "cannot find the address of %s: %s", address, gai_strerror(code));
    bool fits = list->ai_addrlen <= sizeof t->address;
    if (fits) {
        memcpy(t->address, list->ai_addr, list->ai_addrlen);
        t->len = (unsigned)list->ai_addrlen;
        t->family = list->ai_family;
    }
    freeaddrinfo(list);
    snprintf(t->host, sizeof t->host, "%.79s", address);
    return fits ? PN_OK : pn_fail(err, PN_E_IO, "the address of %s has an unknown form", address);
}

PN_INTERNAL pn_status pn_target_find(pn_target *t, const char *url, pn_err *err)
{
    memset(t, 0, sizeof *t);
    snprintf(t->name, sizeof t->name, "%s", url);
    if (strlen(url) < sizeof t->name && strncmp(url, "unix:", 5) == 0)
        return net_target_unix(t, url + 5, err);
    if (strlen(url) < sizeof t->name && strncmp(url, "http://", 7) == 0)
        return net_target_tcp(t, url + 7, err);
    return pn_fail(err, PN_E_INVALID, "%.100s: expected http://HOST:PORT or unix:PATH", url);
}

PN_INTERNAL int pn_target_connect(const pn_target *t)
{
    struct sockaddr_storage a;
    int on = 1, fd = socket(t->family, SOCK_STREAM, 0);
    if (fd < 0)
        return -2;
    if (!net_prepare(fd)) {
        pn_net_close(fd);
        return -2;
    }
    if (t->family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    memcpy(&a, t->address, sizeof t->address);
    if (connect(fd, (struct sockaddr *)&a, (socklen_t)t->len) != 0 && errno != EINPROGRESS && errno != EINTR) {
        pn_net_close(fd);
        return -1;
    }
    return fd;
}

PN_INTERNAL bool pn_target_connected(int fd)
{
    int why = 0;
    socklen_t n = sizeof why;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &why, &n) == 0 && why == 0;
}

/* ------------------------------------------------------------------------------------------
 * Talking
 * ------------------------------------------------------------------------------------------ */

static pn_io net_fault(void)
{
    return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? PN_IO_AGAIN : PN_IO_GONE;
}

PN_INTERNAL pn_io pn_net_read(int fd, void *buf, size_t *n)
{
    ssize_t got = recv(fd, buf, *n, 0);
    *n = got > 0 ? (size_t)got : 0;
    return got > 0 ? PN_IO_DONE : got == 0 ? PN_IO_END : net_fault();
}

PN_INTERNAL pn_io pn_net_write(int fd, const void *bytes, size_t *n)
{
    ssize_t put = send(fd, bytes, *n, NET_NOSIGNAL);
    *n = put > 0 ? (size_t)put : 0;
    return put > 0 ? PN_IO_DONE : put == 0 ? PN_IO_AGAIN : net_fault();
}

PN_INTERNAL void pn_net_shutdown(int fd) { shutdown(fd, SHUT_WR); }

PN_INTERNAL void pn_net_close(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* ------------------------------------------------------------------------------------------
 * Waking
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL pn_status pn_wake_open(pn_wake *w, pn_err *err)
{
    int fd[2];
    w->read_fd = w->write_fd = -1;
    atomic_init(&w->sent, false);
    if (pipe(fd) != 0)
        return pn_fail(err, PN_E_IO, "cannot make a pipe: %s", strerror(errno));
    w->read_fd = fd[0];
    w->write_fd = fd[1];
    if (net_prepare(fd[0]) && net_prepare(fd[1]))
        return PN_OK;
    pn_wake_close(w);
    return pn_fail(err, PN_E_IO, "cannot set up a pipe: %s", strerror(errno));
}

PN_INTERNAL void pn_wake_close(pn_wake *w)
{
    pn_net_close(w->read_fd);
    pn_net_close(w->write_fd);
    w->read_fd = w->write_fd = -1;
}

PN_INTERNAL void pn_wake_send(pn_wake *w)
{
    int keep = errno;                       /* a signal handler must not change it */
    if (!atomic_exchange(&w->sent, true)) {
        ssize_t put = write(w->write_fd, "", 1);
        (void)put;                          /* a full pipe wakes as well */
    }
    errno = keep;
}

PN_INTERNAL void pn_wake_clear(pn_wake *w)
{
    char buf[64];
    while (read(w->read_fd, buf, sizeof buf) > 0)
        continue;
    atomic_store(&w->sent, false);
}

/* ------------------------------------------------------------------------------------------
 * Clocks and chance
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL uint64_t pn_net_now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000 + (uint64_t)t.tv_nsec / 1000000;
}

PN_INTERNAL int64_t pn_net_unix_s(void) { return (int64_t)time(NULL); }

PN_INTERNAL void pn_net_random(void *out, size_t n)
{
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, out, n) : 0;
    pn_net_close(fd);
    if (got == (ssize_t)n)
        return;
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    uint64_t x = pn_hash(&t, sizeof t, (uint64_t)(uintptr_t)&t ^ (uint64_t)getpid());
    for (size_t i = 0; i < n; i++) {
        x = pn_hash(&x, sizeof x, i);
        ((unsigned char *)out)[i] = (unsigned char)x;
    }
}

#undef NET_NOSIGNAL
