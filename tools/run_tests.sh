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
# Tests run TEST_JOBS at a time.  Scripts come first, and one test more runs when there are any, for half of what they do is to
# wait.  Those that say "run_tests: alone" follow, one after the other: they limit memory or measure.
#
#     TEST_JOBS     tests at a time, default: the cores, four at most
#     TEST_TIMEOUT  seconds a test may take, default 300
#     TEST_RUN      a command in front of compiled tests, e.g. qemu-aarch64
# (No PN_ in front: the program refuses PN_ variables it does not know.)
set -u
cd "$(dirname "$0")/.." || exit 1

# One test, in a process of its own: its report to stdout, "passed failed skipped" into a file of $RUN_DIR.
one()
{
    test=$1
    log=$(mktemp "$RUN_DIR/log.XXXXXX") || exit 1
    start=$(date +%s)
    case $test in
    *.sh) set -- sh "$test" "$RUN_PROGRAM" ;;
    *.py) set -- python3 "$test" "$RUN_PROGRAM" ;;
    */*) set -- ${TEST_RUN-} "$test" ;;
    *) set -- ${TEST_RUN-} "./$test" ;;
    esac
    if [ ! -f "$test" ]; then
        echo "was not built" > "$log"
        rc=127
    else
        timeout -k 10 "$RUN_LIMIT" "$@" > "$log" 2>&1 < /dev/null
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
    elif [ $rc = 124 ] || { [ $rc = 137 ] && [ "$seconds" -ge "$RUN_LIMIT" ]; }; then broken="took longer than $RUN_LIMIT s"
    elif [ $rc -gt 128 ]; then broken="killed by signal $((rc - 128))"
    elif [ -z "$last" ]; then broken="no summary, exit $rc"
    elif [ $rc != 0 ] && [ "$f" = 0 ]; then broken="exit $rc though nothing failed"
    elif [ $rc = 0 ] && [ "$f" != 0 ]; then broken="exit 0 though $f failed"
    fi
    [ -z "$broken" ] || f=$((f + 1))
    echo "$p $f $s" > "$log.sum"

    if [ "$f" = 0 ]; then mark='ok  '; else mark=FAIL; fi
    {
        echo "$mark $test: $p passed, $f failed, $s skipped (${seconds} s)${broken:+: $broken}"
        if [ -n "$broken" ] && [ -f "$test" ]; then tail -n 40 "$log" | sed 's/^/     /'
        else grep -aE '^(FAIL|SKIP)' "$log" | sed 's/^/     /'
        fi
    } > "$log.report"
    cat "$log.report"           # in one piece: others are writing, too
    rm -f "$log" "$log.report"
}

if [ "${1-}" = --one ]; then
    one "$2"
    exit 0
fi

RUN_PROGRAM=build/pantheon
built=0
while :; do
    case ${1-} in
    -p) RUN_PROGRAM=$2; shift 2 ;;
    -b) echo 'FAIL the build: not everything compiles, see above'; built=1; shift ;;
    *) break ;;
    esac
done
RUN_LIMIT=${TEST_TIMEOUT-300}
RUN_DIR=$(mktemp -d) || exit 1
export RUN_PROGRAM RUN_LIMIT RUN_DIR
trap 'rm -rf "$RUN_DIR"' EXIT
trap 'exit 130' INT TERM

scripts() { for test; do case $test in *.sh | *.py) echo "$test" ;; esac; done; }
programs() { for test; do case $test in *.sh | *.py) ;; *) echo "$test" ;; esac; done; }
alone=$(scripts "$@" | xargs -r grep -l 'run_tests: alone' 2> /dev/null)
beside=$(scripts "$@" | grep -vxF "${alone:-none}")
jobs=$(nproc 2> /dev/null || echo 1)
[ "$jobs" -le 4 ] || jobs=4
[ -z "$beside" ] || jobs=$((jobs + 1))
jobs=${TEST_JOBS:-$jobs}
{ printf '%s\n' $beside; programs "$@"; } | xargs -r -P "$jobs" -n 1 tools/run_tests.sh --one
printf '%s\n' $alone | xargs -r -n 1 tools/run_tests.sh --one

set -- $(cat "$RUN_DIR"/*.sum 2> /dev/null | awk -v want=$# -v built=$built '
    { passed += $1; failed += $2; skipped += $3 }
    END { if (NR != want) failed += want > NR ? want - NR : NR - want; printf "%d %d %d", passed, failed + built, skipped }')
if [ "$3" = 0 ]; then echo "$1 passed, $2 failed"
else echo "$1 passed, $2 failed, $3 skipped"
fi
[ "$2" = 0 ] && [ "$1" != 0 ]
