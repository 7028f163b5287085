#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# test_plan.sh - `pantheon plan` against the peak memory of a run, on twelve models.
#
#     sh tests/live/test_plan.sh build/pantheon
#
# Run from the repository root.  Every run fills its context, so all keys and values are written; the
# measured peak may differ from plan.total_bytes by 5 % or 16 MiB, whichever is more.  Models of 80 to
# 250 MB are made with `pantheon synth` and deleted again, one at a time.  lib/plan_peak.py does the
# measuring (in a folder of its own, as make test runs every script of this one); without python3, or
# outside Linux, nothing is tested and the script says so.
# run_tests: alone

pantheon=${1:-build/pantheon}
case $pantheon in */*) ;; *) pantheon=./$pantheon ;; esac
peak=tests/live/lib/plan_peak.py
golden=tests/vectors/golden

for name in $(env | sed -n 's/^\(PN_[A-Z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done

passed=0 failed=0 skipped=0

finish() {
    if [ $skipped = 0 ]; then echo "$passed passed, $failed failed"
    else echo "$passed passed, $failed failed, $skipped skipped"
    fi
    [ $failed = 0 ]
    exit
}

none() {
    echo "SKIP $1"
    skipped=$((skipped + 1))
    finish
}

[ -x "$pantheon" ] || none "$pantheon is not there"
command -v python3 >/dev/null || none "plan against peak: no python3"

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

# compare NAME MODEL CTX BATCH [FLAGS]
compare() {
    if [ ! -r "$2" ]; then
        echo "SKIP $1: $2 is not there"
        skipped=$((skipped + 1))
        return
    fi
    python3 "$peak" "$pantheon" "$@"
    case $? in
    0) passed=$((passed + 1)) ;;
    75) skipped=$((skipped + 1)) ;;
    *) failed=$((failed + 1)) ;;
    esac
}

# synthetic SHAPE TYPE CTX BATCH [TYPE as which it is loaded]
synthetic() {
    if "$pantheon" synth "$tmp/model.gguf" --shape "$1" --type "$2" -q; then
        compare "$1 $2${5:+ as $5}" "$tmp/model.gguf" "$3" "$4" ${5:+--load-type "$5"}
        rm -f "$tmp/model.gguf"
    else
        echo "FAIL $1 $2: synth"
        failed=$((failed + 1))
    fi
}

synthetic tiny Q4_K_M 2048 512
synthetic 135m Q4_0 2048 512
synthetic 135m Q8_0 1024 256
synthetic 135m F16 512 64
synthetic 135m F16 512 64 Q8_0
synthetic 135m F16 512 64 Q4_K_M
compare demo models/demo.gguf 2048 512
compare gemma3 $golden/arch/gemma3.gguf 1024 128
compare qwen3moe $golden/arch/qwen3moe.gguf 512 64
compare phi3 $golden/arch/phi3.gguf 512 64
compare lfm2 $golden/arch/lfm2.gguf 512 64
compare llama_moe $golden/arch/llama_moe.gguf 512 64
compare q2_k $golden/quant/q2_k.gguf 512 64

finish
