#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# plans.sh PROGRAM NAME=FILE... - forty kinds of loads of each model: the plan against the peak of a run that fills its context.
#
# The bar is that of tests/live/test_plan.sh, which asks ten of them: 5 % or 16 MiB; here every residency, type of keys and
# values, and several contexts and steps.
pantheon=$1
shift
peak=tests/live/lib/plan_peak.py
good=0 bad=0
try() {
    if python3 $peak "$pantheon" "$@"; then good=$((good + 1)); else bad=$((bad + 1)); fi
}
for pair; do
    name=${pair%%=*} file=${pair#*=}
    for residency in map anon stream; do
        for kv in f16 f32 q8_0 q5_1 q4_0; do
            try "$name" "$file" 256 64 --residency $residency --kv-type $kv
            try "$name" "$file" 640 256 --residency $residency --kv-type $kv
        done
    done
    for shape in '128 16' '512 512' '1024 128' '1536 32' '1024 512'; do
        try "$name" "$file" $shape
        try "$name" "$file" $shape --residency stream --pin-bytes 8M
    done
done
echo "$good agree, $bad differ"
[ $bad = 0 ]
