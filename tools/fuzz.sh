#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# fuzz.sh - run each libFuzzer target for some seconds; nonzero when one finds something.
#
#     tools/fuzz.sh DIR SECONDS tests/fuzz/fuzz_x.c...        programs lie in DIR/tests/fuzz/
#
# New inputs are kept in DIR/corpus/x, crashes in DIR/crashes/.  The committed corpus is read only.
set -u
cd "$(dirname "$0")/.." || exit 1
dir=$1 seconds=$2
shift 2
bad=0
mkdir -p "$dir/crashes"
for source; do
    name=$(basename "$source" .c)
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
        bad=1
        echo "FAIL fuzz_$name"
        grep -aE 'ERROR|runtime error|SUMMARY|Test unit written' "$dir/$name.log" | head -n 10 | sed 's/^/     /'
        [ -x "$dir/tests/fuzz/fuzz_$name" ] || echo "     was not built"
    fi
done
exit $bad
