#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# test_schema_noise.sh - under a JSON Schema even noise is valid, says a validator that is not ours.
#
#     sh tests/live/test_schema_noise.sh build/pantheon
#
# Run from the repository root.  A model with random weights writes COUNT texts under each schema of the
# vectors; lib/schema_noise.py has the jsonschema package of Python judge them.  Without python3 or
# the package nothing is tested and the script says so.

pantheon=${1:-build/pantheon}
count=${COUNT:-100}
case $pantheon in */*) ;; *) pantheon=./$pantheon ;; esac
noise=$(dirname "$pantheon")/tests/live/schema_noise
vectors=tests/vectors/grammar

for name in $(env | sed -n 's/^\(PN_[A-Z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done

none() {
    echo "SKIP $1"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
}

broken() {
    echo "FAIL $1"
    echo "0 passed, 1 failed"
    exit 1
}

[ -x "$pantheon" ] || none "$pantheon is not there"
[ -x "$noise" ] || broken "$noise is not there (make programs)"
command -v python3 >/dev/null || none "schemas against another validator: no python3"

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

"$pantheon" synth "$tmp/model.gguf" --shape tiny --type Q4_0 --seed 1 -q || broken "synth"
python3 tests/live/lib/schema_noise.py "$noise" "$tmp/model.gguf" "$count" $vectors/schema-vectors.json $vectors/schema-noise.json
rc=$?
[ $rc != 75 ] || none "schemas against another validator: Python has no jsonschema"
exit $rc
