#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# test_embedding.sh PROGRAM - the examples with a server inside, compiled as their first lines say against the drops that
# make has compiled beside PROGRAM, and driven: routes of the program beside ours, an answer streamed by the client example, SIGTERM.
#
# The program is only asked whether it is there: a build without it has no server either.
set -u
unset PANTHEON_GOLDEN
program=${1:-build/pantheon}
cc=${CC:-cc}
passed=0 failed=0

if [ ! -x "$program" ] || ! command -v curl > /dev/null; then
    echo "SKIP $program or curl is not there"
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

check()         # check WHAT COMMAND...
{
    what=$1
    shift
    if "$@" > "$dir/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $what: $(tail -n 3 "$dir/log" "$dir/out" 2> /dev/null | tr '\n' ' ')"
    fi
}
finish()
{
    echo "$passed passed, $failed failed"
    [ $failed = 0 ]
    exit
}

# ---- compiled against the drops ----

drop=$(cd "$(dirname "$program")" && pwd)/drop
cp "$drop/pantheon.h" "$drop/pantheon.o" "$drop/pantheon_serve.o" "$dir" || { echo 'FAIL no drops: make programs'; failed=1; finish; }
cp examples/serve_minimal.c examples/daemon.c examples/client.c "$dir"
in_dir() { (cd "$dir" && "$@"); }
for example in serve_minimal daemon; do
    check "$example compiles" in_dir "$cc" -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror $example.c pantheon.o pantheon_serve.o -lm -lpthread -o $example
done
check 'the client compiles, alone' in_dir "$cc" -std=c11 -O2 -Wall -Wextra -Wpedantic -Werror client.c -o client
[ $failed = 0 ] || finish

# begin COMMAND...: in the background, its output in $dir/out; $pid and $port
begin()
{
    : > "$dir/out"
    "$@" > "$dir/out" 2>&1 &
    pid=$!
    pids="$pids $pid"
    for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30; do
        port=$(sed -n 's/^listening on \(http:\/\/\)\{0,1\}127\.0\.0\.1:\([0-9]*\)$/\2/p' "$dir/out")
        [ -z "$port" ] || break
        kill -0 "$pid" 2> /dev/null || break
        sleep 0.2
    done
    url=http://127.0.0.1:$port
    curl -s --retry 30 --retry-delay 1 --retry-all-errors -o /dev/null -f "$url/ready"
}
says() { "$@" > "$dir/said" 2>&1; grep -q -e "$want" "$dir/said" || { cat "$dir/said"; return 1; }; }

# ---- the smallest server ----

begin "$dir/serve_minimal" models/demo.gguf 127.0.0.1:0
want=Paris
check 'the minimal server answers' says curl -s "$url/v1/chat/completions" -d '{"temperature":0,"messages":[{"role":"user","content":"What is the capital of France?"}]}'
check 'the client streams its answer' says "$dir/client" 127.0.0.1 "$port" 'What is the capital of France?'
kill -TERM "$pid"
check 'SIGTERM ends it with 0' wait "$pid"
want='cannot connect'
check 'the client says that nobody is there' says "$dir/client" 127.0.0.1 "$port" Hello
check 'the minimal server says what is wrong' sh -c '! "$1/serve_minimal" models/demo.gguf 127.0.0.1:bogus 2> "$1/said" && grep -q bogus "$1/said"' sh "$dir"

# ---- the daemon ----

begin "$dir/daemon" --name house --listen 127.0.0.1:0 --listen "unix:$dir/socket" models/demo.gguf
want='"id":"house"'
check 'the daemon lists its model' says curl -s "$url/v1/models"
want='"ready":true'
check 'its own route is there' says curl -s "$url/ticks"
first=$(curl -s "$url/ticks")
sleep 1.2
check 'and its own timer runs' [ "$first" != "$(curl -s "$url/ticks")" ]
want='^{"a":1}$'
check 'a body comes back' says curl -s -H 'Content-Type: application/json' -d '{"a":1}' "$url/echo"
want='^400$'
check 'an error of its own is one' says curl -s -o /dev/null -w '%{http_code}\n' -X POST "$url/echo"
want='"ok"'
check 'it listens on its Unix socket, too' says curl -s --unix-socket "$dir/socket" http://x/health
want='[a-z]'
check 'it tells a story' says "$dir/client" 127.0.0.1 "$port" 'Tell me a story about a fox.' house
kill -HUP "$pid"
sleep 0.3
check 'SIGHUP gets a line' grep -q 'ticks, ready$' "$dir/out"

# What is under way is finished: the story is asked for, then the daemon is told to go.
"$dir/client" 127.0.0.1 "$port" 'Tell me a story about a dog.' house > "$dir/story" 2>&1 &
asked=$!
for _ in 1 2 3 4 5 6 7 8 9 10; do
    [ -s "$dir/story" ] && break
    sleep 0.05
done
kill -TERM "$pid"
check 'a story under way is told to its end' wait "$asked"
check 'SIGTERM ends the daemon with 0' wait "$pid"
check 'cleanly' sh -c 'tail -n 1 "$1/out" | grep -q "^stopped$" && [ ! -e "$1/socket" ]' sh "$dir"
want='usage:'
check 'without a model it tells its usage' says "$dir/daemon"

finish
