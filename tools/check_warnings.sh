#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# check_warnings.sh - every drop under every compiler we promise, with -Wall -Wextra -Wpedantic -Werror.
#
#     tools/check_warnings.sh [DIR]       DIR: scratch (default build/check); JOBS=2 at once
#     FULL=1 tools/check_warnings.sh      all combinations instead of the sensible subset
#
# The subset has each compiler, each standard, each target and each compile-time option at least once.  What a front end
# sees (syntax, pedantry, what nobody uses) it is asked alone, in a second; a compiler's whole, which takes a minute
# a drop, runs at the level that warns most: gcc -O3, and clang -O0, whose code generator knows targets.  gcc -O2 builds the
# drops for `make test`, and .ci/run builds the tree for 32 bits and aarch64 with -Werror.
# What the machine lacks is skipped, with a line saying so.
set -u
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.." || exit 1
dir=${1-build/check}
mkdir -p "$dir/warn" || exit 1
tools/amalgamate.sh "$dir/fresh" || exit 1
drops=$(tools/amalgamate.sh --drops)

probe()         # probe COMPILER FLAGS...: can it compile a hosted program at all?
{
    command -v "$1" > /dev/null || return 1
    printf '#include <stdio.h>\n#include <math.h>\nint main(void) { return 0; }\n' |
        "$@" -x c - -c -o "$dir/warn/probe.o" 2> /dev/null
}

list=$dir/warn/list
: > "$list"
have() { probe "$@" || { echo "SKIP check_warnings: $* does not work here"; return 1; }; }
add() { for drop in $drops; do echo "$drop $*" >> "$list"; done; }

m32='-m32'
[ ! -d /usr/include/x86_64-linux-gnu ] || m32='-m32 -isystem /usr/include/x86_64-linux-gnu'
front=              # the front end that also sees functions nobody uses
if have gcc; then
    add gcc -std=c11 -O3
fi
if have clang; then
    front='clang -fsyntax-only'
    add clang -std=gnu11 -O0
fi
have gcc $m32 && add gcc -std=c11 -fsyntax-only $m32
have aarch64-linux-gnu-gcc && add aarch64-linux-gnu-gcc -std=c11 -fsyntax-only
if [ "${FULL-0}" = 1 ]; then
    for cc in gcc clang; do
        have $cc || continue
        for std in c11 gnu11 c17; do
            for o in 0 1 2 3; do add $cc -std=$std -O$o; done
        done
        have $cc $m32 && add $cc -std=gnu11 -O2 $m32
    done
    have clang --target=aarch64-linux-gnu && add clang --target=aarch64-linux-gnu -std=c11 -O2
    have gcc $m32 && add gcc -std=c11 -O1 $m32
    have aarch64-linux-gnu-gcc && add aarch64-linux-gnu-gcc -std=gnu11 -O3
fi
for option in THREADS=0 FILES=0 SIMD=0 ASSERT=0; do
    add ${front:-${CC:-cc} -O0} -std=c11 -DPN_ENABLE_$option
done
[ "$drops" = pantheon.c ] || sed -n 's/^pantheon_serve.c \(.*\)/pantheon_serve.c \1 -DPANTHEON_CLI/p' "$list" >> "$list.cli"
[ ! -f "$list.cli" ] || { cat "$list.cli" >> "$list"; rm -f "$list.cli"; }

# All drops in one translation unit, the host program's headers after them; here are the standards that nobody has had yet.
for drop in $drops; do echo "#include \"$drop\""; done > "$dir/fresh/together.c"
printf '#include <stdio.h>\ntypedef int together;\n' >> "$dir/fresh/together.c"
for cc in gcc clang; do
    ! probe $cc || { echo "together.c $cc -std=c11 -fsyntax-only"; echo "together.c $cc -std=gnu11 -fsyntax-only -DPN_API=static -Wno-unused-function"; } >> "$list"
done
! probe gcc || echo "together.c gcc -std=c17 -fsyntax-only" >> "$list"

# Dead functions are worth knowing, but a module of base used by one drop only is not a mistake.
${front:-${CC:-cc} -O0 -S -o /dev/null} -std=c11 -Wall -DPN_INTERNAL=static "$dir/fresh/pantheon.c" > "$dir/dead.log" 2>&1 &

# Slow lines first, so that the last ones do not run alone.
awk '!seen[$0]++ { print ($0 ~ /-O3/ ? 0 : $0 ~ /-O2/ ? 1 : 2), $0 }' "$list" | sort -s -n -k1,1 | sed 's/^. //' > "$list.sorted"
total=$(grep -c . "$list.sorted")
PN_DIR=$dir xargs -a "$list.sorted" -P "${JOBS:-2}" -d '\n' -n 1 sh -c '
    set -- $0
    drop=$1 cc=$2
    shift 2
    log=$PN_DIR/warn/$$
    if "$cc" -Wall -Wextra -Wpedantic -Werror "$@" -c "$PN_DIR/fresh/$drop" -o "$log.o" 2> "$log.txt"; then
        rm -f "$log".*
    else
        echo "check_warnings: $cc $* $drop"
        head -n 20 "$log.txt"
        rm -f "$log.o"
        exit 1
    fi'
failed=$?

wait
sed -n "s/.*warning: '\([a-z0-9_]*\)' defined but not used.*/\1/p; s/.*unused function '\([a-z0-9_]*\)'.*/\1/p" "$dir/dead.log" |
    sort -u > "$dir/dead"
[ ! -s "$dir/dead" ] || echo "note: $(grep -c . "$dir/dead") functions of pantheon.c are used by no other: $(tr '\n' ' ' < "$dir/dead")"
[ $failed = 0 ] || { echo "check_warnings: failures among $total builds"; exit 1; }
echo "check_warnings: $total builds without a warning"
