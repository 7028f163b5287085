#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# run_tests.sh - run test programs and add up what they say.
#
#     tools/run_tests.sh [-b] [-p PROGRAM] TEST...
#
# A test is a program, or a script (.sh, .py) that is given PROGRAM (build/pantheon) as its argument.
# It prints "N passed, N failed" or "N passed, N failed, N skipped" last and returns nonzero exactly
# when something failed.  A test that crashes, hangs, returns nonzero without a failure, prints no
# summary or was not built counts as one failure more.  One line is printed a test, its FAIL and SKIP
# lines with it, all of its output when it broke.  The last line is the sum.  -b: the build went wrong
# somewhere, so what runs may be stale; that is a failure too.
#
#     TEST_TIMEOUT  seconds a test may take, default 300
#     TEST_RUN      a command in front of compiled tests, e.g. qemu-aarch64
# (No PN_ in front: the program refuses PN_ variables it does not know.)
set -u
cd "$(dirname "$0")/.." || exit 1

program=build/pantheon
passed=0 failed=0 skipped=0
while :; do
    case ${1-} in
    -p) program=$2; shift 2 ;;
    -b) echo 'FAIL the build: not everything compiles, see above'; failed=1; shift ;;
    *) break ;;
    esac
done
limit=${TEST_TIMEOUT-300}
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
trap 'exit 130' INT TERM

for test; do
    start=$(date +%s)
    case $test in
    *.sh) set -- sh "$test" "$program" ;;
    *.py) set -- python3 "$test" "$program" ;;
    */*) set -- ${TEST_RUN-} "$test" ;;
    *) set -- ${TEST_RUN-} "./$test" ;;
    esac
    if [ ! -f "$test" ]; then
        echo "was not built" > "$log"
        rc=127
    else
        timeout -k 10 "$limit" "$@" > "$log" 2>&1 < /dev/null
        rc=$?
    fi
    seconds=$(($(date +%s) - start))

    last=$(tail -n 1 "$log" | grep -aE '^[0-9]+ passed, [0-9]+ failed(, [0-9]+ skipped)?$')
    p=0 f=0 s=0 broken=
    if [ -n "$last" ]; then
        p=${last%% *}
        f=${last#*, } f=${f%% *}
        case $last in *skipped) s=${last##*, } s=${s%% *} ;; esac
    fi
    if [ ! -f "$test" ]; then broken='was not built'
    elif [ $rc = 124 ] || [ $rc = 137 ]; then broken="took longer than $limit s"
    elif [ $rc -gt 128 ]; then broken="killed by signal $((rc - 128))"
    elif [ -z "$last" ]; then broken="no summary, exit $rc"
    elif [ $rc != 0 ] && [ "$f" = 0 ]; then broken="exit $rc though nothing failed"
    elif [ $rc = 0 ] && [ "$f" != 0 ]; then broken="exit 0 though $f failed"
    fi
    [ -z "$broken" ] || f=$((f + 1))
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))

    if [ "$f" = 0 ]; then mark='ok  '; else mark=FAIL; fi
    echo "$mark $test: $p passed, $f failed, $s skipped (${seconds} s)${broken:+: $broken}"
    if [ -n "$broken" ] && [ -f "$test" ]; then tail -n 40 "$log" | sed 's/^/     /'
    else grep -aE '^(FAIL|SKIP)' "$log" | sed 's/^/     /'
    fi
done

if [ $skipped = 0 ]; then echo "$passed passed, $failed failed"
else echo "$passed passed, $failed failed, $skipped skipped"
fi
[ $failed = 0 ] && [ $passed != 0 ]
