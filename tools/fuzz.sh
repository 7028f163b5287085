#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# fuzz.sh - run each libFuzzer target for some seconds; nonzero when one finds something.
#
#     tools/fuzz.sh DIR SECONDS tests/fuzz/fuzz_x.c...        programs lie in DIR/tests/fuzz/
#
# As many at once as there are cores (JOBS).  New inputs are kept in DIR/corpus/x, crashes in
# DIR/crashes/.  The committed corpus is read only.
set -u
cd "$(dirname "$0")/.." || exit 1

if [ "$1" != --one ]; then
    dir=$1
    mkdir -p "$dir/crashes"
    seconds=$2
    shift 2
    jobs=${JOBS:-$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)}
    printf '%s\n' "$@" | xargs -n 1 -P "$jobs" "$0" --one "$dir" "$seconds"
    exit
fi

dir=$2 seconds=$3 name=$(basename "$4" .c)
name=${name#fuzz_}
mkdir -p "$dir/corpus/$name"
seeds=tests/fuzz/corpus/$name
[ -d "$seeds" ] || seeds=
start=$(date +%s)
if "$dir/tests/fuzz/fuzz_$name" -max_total_time="$seconds" -timeout=20 -rss_limit_mb=2048 -max_len=65536 \
    -print_final_stats=1 -artifact_prefix="$dir/crashes/$name-" "$dir/corpus/$name" $seeds > "$dir/$name.log" 2>&1
then
    echo "ok   fuzz_$name: $(sed -n 's/^stat::number_of_executed_units: *//p' "$dir/$name.log") inputs in $(($(date +%s) - start)) s"
else
    what=$(grep -aE 'ERROR|runtime error|SUMMARY|Test unit written' "$dir/$name.log" | head -n 10 | sed 's/^/     /')
    [ -x "$dir/tests/fuzz/fuzz_$name" ] || what="     was not built"
    printf 'FAIL fuzz_%s\n%s\n' "$name" "$what"
    exit 1
fi
