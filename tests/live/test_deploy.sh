#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# test_deploy.sh PROGRAM - examples/deploy against a running server: models come and go as models.conf says, a
# second run does nothing, --prune removes, what cannot be is said.  Also the files beside it: that the dashboard
# is JSON and asks for metrics that exist.
set -u
unset PANTHEON_GOLDEN PANTHEON_ADMIN_KEY
program=${1:-build/pantheon}
deploy=examples/deploy
passed=0 failed=0 skipped=0

if [ ! -x "$program" ] || ! command -v curl > /dev/null || ! command -v bash > /dev/null; then
    echo "SKIP $program, curl or bash is not there"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi
dir=$(mktemp -d) || exit 1
pids=
leave()
{
    for p in $pids; do kill -9 "$p" 2> /dev/null; done
    rm -rf "$dir"
}
trap leave EXIT
trap 'exit 130' INT TERM

pass() { passed=$((passed + 1)); }
fail() { failed=$((failed + 1)); echo "FAIL $1: $(tail -n 4 "$dir/out" | tr '\n' ' ')"; }
check() { if [ $? -eq 0 ]; then pass; else fail "$1"; fi; }
skip() { skipped=$((skipped + 1)); echo "SKIP $1"; }

# says CODE WHAT ARGS...: deploy.sh exits with CODE; its output is in $dir/out
says()
{
    code=$1 what=$2
    shift 2
    bash $deploy/deploy.sh --server "$url" "$@" > "$dir/out" 2>&1
    got=$?
    if [ $got -eq "$code" ]; then pass; else fail "$what: exit $got, expected $code"; fi
}
has() { curl -s -H "Authorization: Bearer ${key-}" "$url/admin/models" | grep -q "\"name\":\"$1\""; }
out() { grep -q -e "$1" "$dir/out"; }

# begin ARGS...: a server; $pid and $url
begin()
{
    : > "$dir/log"
    "$program" serve --port 0 "$@" > "$dir/log" 2>&1 &
    pid=$!
    pids="$pids $pid"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        url=$(sed -n 's/^listening on //p' "$dir/log")
        [ -z "$url" ] || return
        sleep 0.2
    done
    echo "FAIL the server does not start: $(cat "$dir/log")"
    exit 1
}

cp models/demo.gguf "$dir/a.gguf"
cp models/demo.gguf "$dir/second copy.gguf"
begin -m models/demo.gguf --name demo --mem-limit 1G

# ---- two models come ----

cat > "$dir/models.conf" <<CONF
# the server's own keys are not deploy.sh's business
port = 1234
max-concurrent = 3

[model a]
model = $dir/a.gguf
ctx-cap = 1024

  [model second copy.2]
model=$dir/second copy.gguf
max-concurrent = 5
max-sessions = 7
CONF
says 0 'a plan' --plan "$dir/models.conf"
out "^load   a from $dir/a.gguf$" && out '^load   second copy.2 from' && out '^leave  demo'
check 'the plan names what is to be done'
! has a
check 'and nothing has been done'
says 0 'the first run' "$dir/models.conf"
has a && has 'second copy.2' && has demo
check 'both models are there, and the other one still'
curl -s "$url/admin/models" | grep -q '"name":"a",.*"max_concurrent":3,"max_sessions":0,"ctx_cap":1024.*"name":"second copy.2",.*"max_concurrent":5,"max_sessions":7,"ctx_cap":0'
check 'with their caps'
curl -s "$url/v1/chat/completions" -d '{"model":"a","temperature":0,"messages":[{"role":"user","content":"What is the capital of France?"}]}' | grep -q Paris
check 'and one answers'
before=$(curl -s "$url/v1/models" | sed 's/"object":"list"//')
says 0 'the second run' "$dir/models.conf"
out '^nothing to do$' && [ "$before" = "$(curl -s "$url/v1/models" | sed 's/"object":"list"//')" ]
check 'the second run does nothing'

# ---- they change, and go ----

sed 's/ctx-cap = 1024/ctx-cap = 512/' "$dir/models.conf" > "$dir/changed.conf"
says 0 'a plan of a change' --plan "$dir/changed.conf"
out '^reload a (it has ctx-cap 1024)$' && out '^keep   second copy.2$'
check 'it says what has changed'
says 0 'a change' "$dir/changed.conf"
curl -s "$url/v1/models" | grep -q '"id":"a",.*"context_length":512'
check 'the change is made'
sed '/second copy/,$d' "$dir/changed.conf" > "$dir/fewer.conf"
says 0 'without --prune' "$dir/fewer.conf"
out '^nothing to do$' && has 'second copy.2'
check 'what is not in the file stays'
says 0 'a plan with --prune' --plan --prune "$dir/fewer.conf"
out '^unload second copy.2' && out '^unload demo' && has demo
check 'the plan of --prune names what would go'
says 0 '--prune' --prune "$dir/fewer.conf"
! has demo && ! has 'second copy.2' && has a
check '--prune removes the others'
says 0 '--prune again' --prune "$dir/fewer.conf"
out '^nothing to do$'
check '--prune again does nothing'

# ---- what cannot be ----

printf '[model ghost]\nmodel = %s/ghost.gguf\n' "$dir" > "$dir/bad.conf"
says 1 'a file that is not there' "$dir/bad.conf"
out 'ghost.gguf'
check 'is named'
says 1 'once more: it is not remembered as done' "$dir/bad.conf"
cp models/demo.gguf "$dir/ghost.gguf"
says 0 'when it is there it is loaded' "$dir/bad.conf"
says 3 'too little memory' --headroom 1000T "$dir/models.conf"
out 'a.gguf has 2 MiB and 1048576000 MiB are to stay free'
check 'is told with numbers'
has a && ! has 'second copy.2'
check 'and nothing is touched'
says 2 'a key of a start' "$(printf '[model x]\nmodel = y\nkv-type = f32\n' > "$dir/key.conf" && echo "$dir/key.conf")"
out 'key.conf:3: kv-type'
check 'is told by line'
says 2 'a model without a file' "$(printf '[model x]\n' > "$dir/none.conf" && echo "$dir/none.conf")"
says 2 'a file that cannot be read' "$dir/absent.conf"
says 2 'an unknown flag' --bogus
bash $deploy/deploy.sh --server http://127.0.0.1:1 "$dir/models.conf" > "$dir/out" 2>&1
[ $? -eq 1 ] && out 'no answer'
check 'a server that is not there'

# ---- the backend ----

sh $deploy/assert_backend.sh cpu "$url" > "$dir/out" 2>&1
check 'the backend is the CPU'
! sh $deploy/assert_backend.sh cuda "$url" > "$dir/out" 2>&1 && out "runs on 'cpu', expected 'cuda'"
check 'and no other'
! WAIT=0 sh $deploy/assert_backend.sh cpu http://127.0.0.1:1 > "$dir/out" 2>&1 && out 'does not answer'
check 'nor is a server that is not there'

# ---- the dashboard asks for what there is ----

curl -s "$url/metrics" | sed -n 's/^# TYPE \([a-z0-9_:]*\) .*/\1/p' > "$dir/types"
sed 's/_\(bucket\|sum\|count\)$//' "$dir/types" | sort -u > "$dir/known"
grep -o 'pantheon_[a-z0-9_]*\|process_start_time_seconds' $deploy/grafana.json | sed 's/_bucket$//; s/_sum$//; s/_count$//' | sort -u > "$dir/asked"
[ -s "$dir/asked" ] && comm -23 "$dir/asked" "$dir/known" > "$dir/out" && [ ! -s "$dir/out" ]
check 'every metric of the dashboard exists'
if command -v python3 > /dev/null; then
    python3 -m json.tool $deploy/grafana.json > /dev/null 2> "$dir/out"
    check 'the dashboard is JSON'
else
    skip 'the dashboard is JSON: no python3'
fi
if command -v shellcheck > /dev/null; then
    shellcheck $deploy/*.sh > "$dir/out" 2>&1
    check 'shellcheck has nothing to say'
else
    skip 'shellcheck is not here'
fi
if command -v haproxy > /dev/null; then
    haproxy -c -f $deploy/haproxy.cfg > "$dir/out" 2>&1
    check "HAProxy's file is valid"
else
    skip "HAProxy's file: no haproxy"
fi
if command -v nginx > /dev/null; then
    printf 'pid %s/nginx.pid;\nerror_log stderr;\nevents {}\nhttp { access_log off; include %s; }\n' "$dir" "$PWD/$deploy/nginx.conf" > "$dir/nginx.conf"
    nginx -t -c "$dir/nginx.conf" > "$dir/out" 2>&1
    check "nginx's file is valid"
else
    skip "nginx's file: no nginx"
fi
if command -v promtool > /dev/null; then
    promtool check config $deploy/prometheus.yml > "$dir/out" 2>&1
    check "Prometheus' file is valid"
else
    skip "Prometheus' file: no promtool"
fi
kill "$pid"
wait "$pid"
check 'the server ends with 0'

# ---- with a key ----

echo 'sesame' > "$dir/keys"
begin -m models/demo.gguf --name demo --admin-key-file "$dir/keys"
printf '[model demo]\nmodel = models/demo.gguf\n' > "$dir/demo.conf"
says 1 'without the key' "$dir/demo.conf"
out 'key'
check 'the key is asked for'
PANTHEON_ADMIN_KEY=sesame key=sesame
export PANTHEON_ADMIN_KEY
says 0 'with the key' "$dir/demo.conf"
out '^nothing to do$'
check 'what the server was started with is kept'
kill "$pid"
wait "$pid"

echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
