#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# check_header.sh - headers stand on their own.
#
# pantheon.h compiles from C and from C++ without a warning, and so does the example that includes it;
# every internal header compiles alone.  The README's program is that example.  Compilers that are
# absent are skipped, with a line saying so.
set -u
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.." || exit 1
bad=0
strict='-Wall -Wextra -Wpedantic -Werror -fsyntax-only'

try()           # try LABEL TEXT COMPILER FLAGS...
{
    label=$1 text=$2
    shift 2
    if ! command -v "$1" > /dev/null; then
        echo "SKIP check_header: $label: no $1"
    elif ! "$@" $strict - <<SOURCE; then
$text
typedef int check_header_end;
SOURCE
        echo "check_header: $label does not compile: $*"
        bad=1
    fi
}

use='#include <pantheon.h>
int main(void) { pn_err e; (void)sizeof(pn_engine_params); e.status = PN_OK; return e.status || pn_version() == NULL; }'
for std in c99 c11 gnu11 c17; do
    for cc in gcc clang; do
        try "pantheon.h from $std" "$use" $cc -x c -std=$std -Isrc
    done
done
for std in c++11 c++17; do
    for cc in g++ clang++; do
        try "pantheon.h from $std" "$use" $cc -x c++ -std=$std -Isrc
    done
done
for example in examples/*.c; do
    [ -f "$example" ] && try "$example" "#include \"../$example\"" ${CC:-cc} -x c -std=c11 -Isrc
done
# The README shows the example in full.
awk '/^```c$/ { p = 1; next } /^```$/ { p = 0 } p' README.md | cmp -s - examples/embed.c || {
    echo 'check_header: the program in README.md is not examples/embed.c'
    bad=1
}
for header in $(find src -name '*.h' | sort); do
    try "$header" "#include <${header#src/}>" ${CC:-cc} -x c -std=c11 -Wno-unused-function -Isrc
done
exit $bad
