#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# check_symbols.sh - what do our objects show to a linker?
#
#   1. The drops define external names that start with pn_, and only those pantheon.h declares PN_API
#      (or a backend's own pn_<name>_register).
#   2. Every PN_API function of pantheon.h is defined in exactly one drop.
#   3. libpantheon.a, where PN_INTERNAL is hidden instead of static, defines pn_ names only.
#   4. pantheon.c holds no writable state but the chosen instruction set and the list of backends.
#   5. Nothing in the library can print to the terminal, exit or abort.
#
#     tools/check_symbols.sh DIR OBJECTS LIBRARY      DIR: scratch; OBJECTS has each drop compiled
set -u
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.." || exit 1
dir=$1 objects=$2 lib=$3
mkdir -p "$dir" || exit 1
bad=0

say() { echo "check_symbols: $*"; bad=1; }

# The functions declared PN_API, one a line.
awk '/^PN_API/ { text = ""; open = 1 }
     open { text = text " " $0
            if ($0 ~ /;/) { open = 0; gsub(/\/\*[^*]*\*\//, "", text); sub(/\(.*/, "", text); sub(/.*[ *]/, "", text); print text } }' \
    src/pantheon.h | sort > "$dir/api"

: > "$dir/defined"
for drop in $(tools/amalgamate.sh --drops); do
    obj=$objects/${drop%.c}.o
    [ -f "$obj" ] || { say "there is no $obj"; continue; }
    nm -g --defined-only "$obj" | awk 'NF == 3 { print $3 }' | sort > "$dir/names"
    grep -v '^pn_' "$dir/names" | sed "s|^|check_symbols: $drop shows a name without pn_: |" | grep . && bad=1
    grep '^pn_' "$dir/names" | grep -v '^pn_[a-z]*_register$' | comm -23 - "$dir/api" |
        sed "s|^|check_symbols: $drop shows a name that pantheon.h does not declare: |" | grep . && bad=1
    cat "$dir/names" >> "$dir/defined"
    nm -u "$obj" | awk '{ print $NF }' | sed 's/@.*//' |
        grep -xE 'printf|puts|putchar|vprintf|perror|exit|_exit|_Exit|abort|__assert_fail|stdout|stderr|signal|sigaction' |
        sed "s|^|check_symbols: $drop is a library but uses |" | grep . && bad=1
done
sort "$dir/defined" | uniq -d | sed 's|^|check_symbols: defined in more than one drop: |' | grep . && bad=1
missing=$(sort -u "$dir/defined" | comm -13 - "$dir/api" | tr '\n' ' ')
[ -z "$missing" ] || say "declared in pantheon.h, defined in no drop: $missing"

# (.data.rel.ro is what a position-independent object calls constants with pointers in them.)
nm -f sysv "$objects/pantheon.o" | awk -F'|' '$7 ~ /^(\.data|\.bss|\.tbss|\.tdata|\*COM\*)/ && $7 !~ /^\.data\.rel\.ro/ { gsub(/ /, "", $1); print $1 }' |
    grep -vE '^((pn_)?cpu_|engine_backends$)' |
    sed 's|^|check_symbols: pantheon.c has writable file-scope state: |' | grep . && bad=1

[ -f "$lib" ] || say "there is no $lib"
nm -g --defined-only "$lib" 2>/dev/null | awk 'NF == 3 { print $3 }' | grep -v '^pn_' |
    sed "s|^|check_symbols: $lib shows a name without pn_: |" | grep . && bad=1
exit $bad
