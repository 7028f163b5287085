#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# check_layers.sh - does every file of src/ include only what its layer may see?
#
# A folder includes headers of lower ranks and its own; equal ranks do not see each other.  serve and
# cli are customers of pantheon.h: of base they see the modules that pantheon_serve.c carries (its
# list in tools/amalgamate.sh decides).  The first include of a .c file is one of ours.  Prints the
# offending lines.
set -u
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.." || exit 1

pure=$(tools/amalgamate.sh --list pantheon_serve.c | sed -n 's,^base/,,p' | tr '\n' ' ')
modules=$(find src/base -name '*.c' | sed 's,.*/,,' | tr '\n' ' ')

find src -name '*.[ch]' | sort | xargs awk -v pure="$pure" -v modules="$modules" '
BEGIN {
    ranks = "base:0 num:1 cpu:2 format:2 text:2 plan:3 sample:3 mem:3 model:4 store:4 device:4 engine:5"
    n = split(ranks, pair, " ")
    for (i = 1; i <= n; i++) { split(pair[i], kv, ":"); rank[kv[1]] = kv[2] }
    n_pure = split(pure, pure_c, " ")
    n_modules = split(modules, module_c, " ")
}
# base/pn_os.h is implemented by pn_os.c or by pn_os_linux.c and its twins.
function is_pure(header,    stem, i) {
    stem = header
    sub(/^base\//, "", stem)
    sub(/\.h$/, "", stem)
    for (i = 1; i <= n_pure; i++) if (pure_c[i] == stem ".c" || index(pure_c[i], stem "_") == 1) return 1
    for (i = 1; i <= n_modules; i++) if (module_c[i] == stem ".c" || index(module_c[i], stem "_") == 1) return 0
    return 1                                    # a header without a .c: types and inlines
}
function allowed(from, to, header) {
    if (header == "pantheon.h" || from == to) return 1
    if (from == "serve" || from == "cli") return (from == "cli" && to == "serve") || (to == "base" && is_pure(header))
    if (from == "cuda" || from == "tt")
        return to == "base" || to == "num" || header == "plan/pn_plan_types.h" || header == "device/pn_device.h"
    return (from in rank) && (to in rank) && rank[to] < rank[from]
}
FNR == 1 { first = 1; split(FILENAME, part, "/"); from = FILENAME == "src/pantheon.h" ? "pantheon.h" : part[2] }
/^[ \t]*#[ \t]*include/ && first {
    first = 0
    if (FILENAME ~ /\.c$/ && $0 !~ /"/) {
        print FILENAME ":" FNR ": " $0 "    (the first include is a header of ours: it sets feature macros)"
        bad = 1
    }
}
/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    header = quoted[2]
    to = header
    if (!sub(/\/.*/, "", to) && header != "pantheon.h") why = "the path does not start at src/"
    else if (from == "pantheon.h") why = "pantheon.h includes nothing of ours"
    else if (!allowed(from, to, header)) why = from " may not see " header
    else if ((getline probe < ("src/" header)) < 0) why = "there is no src/" header
    else { close("src/" header); next }
    print FILENAME ":" FNR ": " $0 "    (" why ")"
    bad = 1
}
END { exit bad }'
