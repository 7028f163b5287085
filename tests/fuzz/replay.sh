#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
# replay.sh PROGRAM - give every fuzz target its committed corpus; the targets lie beside PROGRAM.
set -u
dir=$(dirname "$1")/tests/fuzz
passed=0 failed=0
for source in tests/fuzz/fuzz_*.c; do
    name=$(basename "$source" .c)
    files=
    for file in tests/fuzz/corpus/"${name#fuzz_}"/*; do
        [ ! -f "$file" ] || files="$files $file"
    done
    if out=$(${TEST_RUN-} "$dir/$name" $files 2>&1); then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $name:"
        echo "$out" | tail -n 20
    fi
done
echo "$passed passed, $failed failed"
[ $failed = 0 ]
