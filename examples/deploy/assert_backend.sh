#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# assert_backend.sh - does the server compute on what it should?  Nothing is worse than a GPU host that quietly
# serves from its CPU: run this after a start, in a health check, in CI.
#
#     assert_backend.sh BACKEND [URL]         cpu, cuda or tt; URL: default http://127.0.0.1:8080
#
# Exit: 0 yes, 1 no, or no answer within WAIT seconds (default 60).
set -eu
want=${1:?usage: assert_backend.sh BACKEND [URL]}
url=${2:-http://127.0.0.1:8080}
end=$(($(date +%s) + ${WAIT:-60}))

until root=$(curl -sS -f -m 5 -H 'Accept: application/json' "$url/" 2> /dev/null); do
    if [ "$(date +%s)" -ge "$end" ]; then
        echo "assert_backend.sh: $url does not answer" >&2
        exit 1
    fi
    sleep 1
done
have=$(printf '%s\n' "$root" | sed -n 's/.*"backend":"\([^"]*\)".*/\1/p')
if [ "$have" != "$want" ]; then
    echo "assert_backend.sh: $url runs on '${have:-something that is no Pantheon}', expected '$want'" >&2
    exit 1
fi
echo "$url runs on $have"
