/* SPDX-License-Identifier: AGPL-3.0-only */
#include "base/pn_cgroup.h"

#if PN_ENABLE_FILES && defined(__linux__)

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

/* ------------------------------------------------------------------------------------------
 * Reading small texts
 * ------------------------------------------------------------------------------------------ */

PN_INTERNAL void pn_lines_begin(pn_lines *l, int fd)
{
    l->fd = fd;
    l->failed = fd < 0;
    l->whole = false;
    l->offset = 0;
    l->at = l->have = 0;
}

static bool cgroup_lines_fill(pn_lines *l)
{
    ssize_t got;
    if (l->failed || (l->whole && l->offset && l->have < sizeof l->buf))
        return false;
    do
        got = pread(l->fd, l->buf, sizeof l->buf, (off_t)l->offset);
    while (got < 0 && errno == EINTR);
    l->failed = got < 0;
    l->at = 0;
    l->have = got > 0 ? (size_t)got : 0;
    l->offset += l->have;
    return got > 0;
}

PN_INTERNAL bool pn_lines_next(pn_lines *l)
{
    size_t n = 0;
    bool any = false;
    for (const char *end = NULL; !end && (l->at < l->have || cgroup_lines_fill(l)); any = true) {
        const char *from = l->buf + l->at;
        end = memchr(from, '\n', l->have - l->at);
        size_t len = end ? (size_t)(end - from) : l->have - l->at, fits = PN_MIN(len, sizeof l->line - 1 - n);
        memcpy(l->line + n, from, fits);
        n += fits;
        l->at += len + (end != NULL);
    }
    l->line[n] = 0;
    return any;
}

PN_INTERNAL int pn_cgroup_open_file(const char *dir, const char *file)
{
    char path[PN_CGROUP_PATH];
    int fd, n = snprintf(path, sizeof path, "%s/%s", dir, file);
    if (n < 0 || (size_t)n >= sizeof path) {
        errno = ENOENT;
        return -1;
    }
    do
        fd = open(path, O_RDONLY | O_CLOEXEC);
    while (fd < 0 && errno == EINTR);
    return fd;
}

PN_INTERNAL bool pn_cgroup_u64(const char **s, uint64_t *out)
{
    const char *p = *s;
    uint64_t v = 0;
    if (*p < '0' || *p > '9')
        return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        uint64_t digit = (uint64_t)(*p - '0');
        v = v > (UINT64_MAX - digit) / 10 ? UINT64_MAX : v * 10 + digit;
    }
    *s = p;
    *out = v;
    return true;
}

/* ------------------------------------------------------------------------------------------
 * Where our cgroup is
 * ------------------------------------------------------------------------------------------ */

/* Is `word` one of the items of a comma-separated list of `len` bytes? */
static bool cgroup_in_list(const char *list, size_t len, const char *word)
{
    size_t n = strlen(word);
    for (size_t at = 0; at <= len;) {
        size_t item = 0;
        while (at + item < len && list[at + item] != ',')
            item++;
        if (item == n && memcmp(list + at, word, n) == 0)
            return true;
        at += item + 1;
    }
    return false;
}

/* Our path in the hierarchy of `controller` (NULL: version 2), from root/proc/self/cgroup. */
static bool cgroup_own_path(const char *root, const char *controller, char path[PN_CGROUP_LINE])
{
    pn_lines l;
    bool found = false;
    int fd = pn_cgroup_open_file(root, "proc/self/cgroup");
    pn_lines_begin(&l, fd);
    while (!found && pn_lines_next(&l)) {
        const char *list = strchr(l.line, ':');         /* "id:list:path"; a path may hold colons */
        const char *own = list ? strchr(list + 1, ':') : NULL;
        if (!own)
            continue;
        list++;
        size_t len = (size_t)(own - list);
        found = controller ? cgroup_in_list(list, len, controller) : len == 0 && l.line[0] == '0';
        if (found)
            memcpy(path, own + 1, strlen(own + 1) + 1);
    }
    if (fd >= 0)
        close(fd);
    return found;
}

/* mountinfo writes blanks and backslashes as three octal digits; undo that in place. */
static void cgroup_unescape(char *s)
{
    char *to = s;
    for (; *s; s++) {
        if (s[0] == '\\' && s[1] >= '0' && s[1] <= '3' && s[2] >= '0' && s[2] <= '7' && s[3] >= '0' && s[3] <= '7') {
            *to++ = (char)((s[1] - '0') * 64 + (s[2] - '0') * 8 + (s[3] - '0'));
            s += 3;
        } else {
            *to++ = *s;
        }
    }
    *to = 0;
}

typedef struct cgroup_mount {
    char *root, *point, *type, *options;
} cgroup_mount;

/* Cut a mountinfo line in place: id parent dev root point options [tags...] - type source options */
static bool cgroup_split_mount(char *line, cgroup_mount *m)
{
    char *tail = strstr(line, " - ");
    if (!tail)
        return false;
    *tail = 0;
    *m = (cgroup_mount){.root = line, .point = line, .type = tail + 3, .options = tail + 3};
    char *at = line;
    for (int field = 0; field < 5; field++) {
        if (field == 3)
            m->root = at;
        if (field == 4)
            m->point = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = 0;
    }
    at = m->type;
    for (int field = 0; field < 3; field++) {
        if (field == 2)
            m->options = at;
        at += strcspn(at, " ");
        if (*at)
            *at++ = 0;
    }
    cgroup_unescape(m->root);
    cgroup_unescape(m->point);
    return m->point[0] == '/';
}

/* What is left of `path` below the mount's root, or NULL when the root is not above it. */
static const char *cgroup_below(const char *path, const char *mount_root)
{
    size_t n = strlen(mount_root);
    if (n == 1 && mount_root[0] == '/')
        n = 0;
    if (strncmp(path, mount_root, n) != 0 || (path[n] != 0 && path[n] != '/'))
        return NULL;
    const char *rest = path + n;
    for (const char *up = rest; (up = strstr(up, "/..")) != NULL; up += 3)
        if (up[3] == '/' || up[3] == 0)         /* we were moved out of the namespace's root */
            return NULL;
    return strcmp(rest, "/") == 0 ? "" : rest;
}

/* Is this line a mount of the hierarchy we look for? */
static bool cgroup_is_mount(const cgroup_mount *m, const char *controller)
{
    if (!controller)
        return strcmp(m->type, "cgroup2") == 0;
    return strcmp(m->type, "cgroup") == 0 && cgroup_in_list(m->options, strlen(m->options), controller);
}

/* Of several mounts of one hierarchy, the first whose root is above us wins, else the first. */
PN_INTERNAL bool pn_cgroup_find(pn_cgroup *g, const char *root, const char *controller)
{
    char own[PN_CGROUP_LINE];
    pn_lines l;
    cgroup_mount m;
    bool found = false, exact = false;
    if (!cgroup_own_path(root, controller, own))
        return false;
    int fd = pn_cgroup_open_file(root, "proc/self/mountinfo");
    pn_lines_begin(&l, fd);
    while (!exact && pn_lines_next(&l)) {
        if (!cgroup_split_mount(l.line, &m) || !cgroup_is_mount(&m, controller))
            continue;
        const char *rest = cgroup_below(own, m.root);
        size_t before = strlen(root), n = strlen(m.point);
        if ((found && !rest) || before + n >= sizeof g->dir)
            continue;
        memcpy(g->dir, root, before);
        memcpy(g->dir + before, m.point, n + 1);
        g->top = before + n;
        found = true;
        exact = rest != NULL;
        if (exact && strlen(rest) < sizeof g->dir - g->top)
            memcpy(g->dir + g->top, rest, strlen(rest) + 1);
    }
    if (fd >= 0)
        close(fd);
    return found;
}

PN_INTERNAL bool pn_cgroup_up(pn_cgroup *g)
{
    size_t n = strlen(g->dir);
    if (n <= g->top)
        return false;
    while (n > g->top && g->dir[n - 1] != '/')
        n--;
    while (n > g->top && g->dir[n - 1] == '/')
        n--;
    g->dir[n] = 0;
    return true;
}

#endif /* PN_ENABLE_FILES && __linux__ */
