#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# check_drops.sh - are the committed drops what src/ says?
#
#   1. Every .c file under src/ is in the lists of tools/amalgamate.sh where its folder belongs, once,
#      in the order of the layers; files of base may be in several drops.
#   2. A .c file that is in several drops holds no writable file-scope state.
#   3. A fresh run gives the same bytes as the committed drops.
#
#     tools/check_drops.sh [DIR]      DIR: a scratch folder, default build/check
set -u
LC_ALL=C
export LC_ALL
cd "$(dirname "$0")/.." || exit 1
dir=${1-build/check}
mkdir -p "$dir" || exit 1
bad=0

say() { echo "check_drops: $*"; bad=1; }

: > "$dir/lists"
for drop in $(tools/amalgamate.sh --drops); do
    tools/amalgamate.sh --list "$drop" | sed "s,^,$drop ," >> "$dir/lists"
done
find src -mindepth 2 -name '*.c' | sed 's,^src/,,' | sort > "$dir/files"

awk '
BEGIN {
    core = "base num cpu format text plan sample mem model store device engine"
    n = split(core, folder, " ")
    for (i = 1; i <= n; i++) { home[folder[i]] = "pantheon.c"; rank[folder[i]] = i }
    home["serve"] = home["cli"] = "pantheon_serve.c"; rank["serve"] = 20; rank["cli"] = 21
    home["cuda"] = "pantheon_cuda.c"; home["tt"] = "pantheon_tt.c"; rank["cuda"] = rank["tt"] = 20
}
function say(text) { print "check_drops: " text; bad = 1 }
function dir(path) { sub(/\/.*/, "", path); return path }
FILENAME ~ /lists$/ {
    d = dir($2)
    if (($1, $2) in listed) say($2 " is twice in the list of " $1)
    listed[$1, $2] = 1
    path[$2] = $1
    if (!(d in home)) say($2 ": no drop is known for the folder " d)
    else if (d != "base" && home[d] != $1 && !(d == "num" && $1 ~ /cuda|tt/)) say($2 " does not belong into " $1)
    if ($1 == drop && rank[d] < last) say($2 " stands after a higher layer in the list of " $1)
    drop = $1; last = rank[d]
    next
}
{
    exists[$1] = 1
    d = dir($1)
    if (!(d in home)) say($1 ": no drop is known for the folder " d)
    else if (!((home[d], $1) in listed)) say($1 " is missing from the list of " home[d] " in tools/amalgamate.sh")
}
END {
    for (p in path) if (!(p in exists)) say(p " is in the list of " path[p] " but not in src/")
    exit bad
}' "$dir/lists" "$dir/files" || bad=1

for file in $(awk '{ print $2 }' "$dir/lists" | sort | uniq -d); do
    [ -f "src/$file" ] || continue
    ${CC:-cc} -std=c11 -O1 -fno-pic -Isrc -c "src/$file" -o "$dir/pure.o" || { bad=1; continue; }
    state=$(nm "$dir/pure.o" | awk '$2 ~ /^[bBcCdDsS]$/ { print $3 }' | tr '\n' ' ')
    [ -z "$state" ] || say "src/$file is in several drops but has state: $state"
done

if tools/amalgamate.sh "$dir/fresh"; then
    for drop in pantheon.h $(tools/amalgamate.sh --drops); do
        cmp -s "$drop" "$dir/fresh/$drop" || say "$drop is not what src/ gives; mend it with: make drops"
    done
else
    bad=1
fi
for drop in pantheon*.c; do
    [ ! -f "$drop" ] || tools/amalgamate.sh --drops | grep -qx "$drop" || say "$drop has no source any more"
done
exit $bad
