#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# check_malloc.sh - does every byte come through base/pn_mem.h?
#
# The ledger counts what is asked of a pn_mem, so src/ takes no memory behind its back: malloc and its
# kin, mmap and the functions of libc that return memory of their own (strdup, asprintf, getline) are for
# the files named below alone.  alloca is forbidden everywhere: a stack has no ledger either.  Calls
# through a struct (a->free(...)) and words in comments or strings do not count.  Prints the offending
# lines.
set -u
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.." || exit 1

find src -name '*.[ch]' | sort | xargs awk '
BEGIN {
    names = "malloc calloc realloc reallocarray free aligned_alloc posix_memalign memalign valloc mmap munmap mremap " \
            "strdup strndup asprintf vasprintf getline getdelim realpath open_memstream"
    n = split(names, name, " ")
    for (i = 1; i <= n; i++) raw[name[i]] = 1
    ours["src/base/pn_mem.c"] = "malloc free"           # the libc allocator behind every default
    ours["src/base/pn_os_posix.c"] = "mmap munmap"      # pn_os_map: weights, which the ledger notes apart
}
function may(word,    allowed, k, i) {
    if (!(FILENAME in ours)) return 0
    k = split(ours[FILENAME], allowed, " ")
    for (i = 1; i <= k; i++) if (allowed[i] == word) return 1
    return 0
}
# What is code in a line: no strings, no comments; a comment may go on in the next line.
function code(line,    at, out) {
    if (comment) {
        if (!(at = index(line, "*/"))) return ""
        comment = 0
        line = substr(line, at + 2)
    }
    gsub(/\\./, "", line)
    gsub(/"[^"]*"/, "\"\"", line)
    gsub(/\/\*([^*]|\*[^\/])*\*\//, " ", line)
    sub(/\/\/.*/, "", line)
    if ((at = index(line, "/*"))) { comment = 1; line = substr(line, 1, at - 1) }
    return line
}
FNR == 1 { comment = 0 }
{
    line = code($0)
    while (match(line, /[A-Za-z_][A-Za-z0-9_]*[ \t]*\(/)) {
        before = RSTART > 1 ? substr(line, RSTART - 1, 1) : ""
        word = substr(line, RSTART, RLENGTH - 1)
        sub(/[ \t]+$/, "", word)
        line = substr(line, RSTART + RLENGTH)
        if (before == "." || before == ">") continue
        if (word == "alloca" || (word in raw && !may(word))) {
            print FILENAME ":" FNR ": " word "()    (memory comes through base/pn_mem.h)"
            bad = 1
        }
    }
}
END { exit bad }'
