#!/bin/bash
# SPDX-License-Identifier: AGPL-3.0-only
#
# deploy.sh - make a running server have the models that models.conf says.  Needs bash and curl.
#
#     deploy.sh [--plan] [--prune] [--server URL | --socket PATH] [--headroom SIZE] [--timeout SECONDS] [models.conf]
#
#     --plan       say what would be done, and do nothing
#     --prune      unload models that models.conf does not have; they are left alone otherwise
#     --server     default http://127.0.0.1:8080
#     --socket     the server's Unix socket
#     --headroom   memory that stays free beside a model's file, default 256M
#     --timeout    longest wait for one load, one unload or for memory to settle, default 600
#
# A key for /admin is taken from the variable PANTHEON_ADMIN_KEY; it does not appear among the processes.
#
# What is there already is left as it is, so a second run does nothing.  A model whose file or caps have changed is
# unloaded (what it is working on is finished first) and loaded anew.  Unloading comes first, because it makes room.
# Before each load the script waits until no model is coming or going and the free memory stands still; then the
# file's size and the headroom have to fit into what /admin/memory and /admin/dies call free, if the file can be seen
# from here; what could not fit even into an empty machine is refused before anything is touched.  The server itself
# refuses what does not fit (507), whatever this script thinks.  Paths are as the server sees them.
#
# Exit: 0 the server has it all (with --plan: the plan was made), 1 something went wrong, 2 wrong usage or
# models.conf, 3 not enough memory.
set -euo pipefail
export LC_ALL=C

server=http://127.0.0.1:8080 socket='' conf='' plan=0 prune=0 headroom=256M timeout=600

say() { printf '%s\n' "$*"; }
die() { local code=$1; shift; printf 'deploy.sh: %s\n' "$*" >&2; exit "$code"; }

usage() { die 2 "$1; usage: deploy.sh [--plan] [--prune] [--server URL | --socket PATH] [--headroom SIZE] [--timeout SECONDS] [models.conf]"; }

while [ $# -gt 0 ]; do
    case $1 in
    --plan) plan=1 ;;
    --prune) prune=1 ;;
    --server | --socket | --headroom | --timeout)
        [ $# -gt 1 ] || usage "$1: a value is missing"
        printf -v "${1#--}" %s "$2"
        shift ;;
    -*) usage "$1: no such flag" ;;
    *) [ -z "$conf" ] || usage "$1: one file is enough"; conf=$1 ;;
    esac
    shift
done
conf=${conf:-models.conf}
[[ $timeout =~ ^[0-9]+$ ]] || usage "--timeout: '$timeout' is no number of seconds"

# "2G" in bytes, into REPLY
size()
{
    [[ $1 =~ ^([0-9]+)([KMGT]?)$ ]] || usage "--headroom: '$1' is no size such as 512M"
    local -A unit=([K]=10 [M]=20 [G]=30 [T]=40)
    REPLY=$((BASH_REMATCH[1] << ${unit[${BASH_REMATCH[2]:-x}]:-0}))
}
size "$headroom"
headroom=$REPLY

# ---- JSON ----

# Flatten a JSON text into J: J[models.0.name]=demo, J[models.#]=1.  Strings lose their escapes (\u stays).
declare -A J
json()
{
    local rest=$1 path='' key='' token
    local -a stack=() kinds=() counts=()
    J=()
    local value='^("([^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*|true|false|null|[][{},:])'
    while rest=${rest#"${rest%%[![:space:]]*}"} && [ -n "$rest" ]; do
        [[ $rest =~ $value ]] || return 1
        token=${BASH_REMATCH[1]}
        rest=${rest:${#token}}
        local top=$((${#kinds[@]} - 1))
        case $token in
        '{' | '[')
            [ $top -lt 0 ] || [ "${kinds[top]}" = '{' ] || key=${counts[top]}
            stack+=("$path")
            [ $top -lt 0 ] || path=$path$key.
            kinds+=("$token")
            counts+=(0)
            key='' ;;
        '}' | ']')
            [ $top -ge 0 ] || return 1
            if [ "$token" = ']' ]; then
                # the last element has no comma behind it
                local n=${counts[top]}
                [ -z "${J[$path$n]+x}" ] && [ -z "${J[$path$n.#]+x}" ] || n=$((n + 1))
                J[$path#]=$n
            else
                J[$path#]=object
            fi
            path=${stack[top]}
            unset "stack[top]" "kinds[top]" "counts[top]" ;;
        ,) counts[top]=$((counts[top] + 1)); key='' ;;
        :) ;;
        *)
            if [[ $token == '"'* ]]; then
                token=${token:1:${#token}-2}
                token=${token//\\\"/\"}
                token=${token//\\\//\/}
                token=${token//\\\\/\\}
            fi
            if [ $top -lt 0 ]; then J[.]=$token
            elif [ "${kinds[top]}" = '[' ]; then J[$path${counts[top]}]=$token
            elif [ -z "$key" ]; then key=$token
            else J[$path$key]=$token; fi ;;
        esac
    done
}

# The number at J[KEY] into REPLY; 0 when it is not there.  Bash would compute whatever else stood in its place.
number() { REPLY=${J[$1]-0}; [[ $REPLY =~ ^[0-9]+$ ]] || die 1 "the server says '$REPLY' for $1, which is no number"; }

quote() { local s=${1//\\/\\\\}; REPLY="\"${s//\"/\\\"}\""; }

# ---- the server ----

# call METHOD PATH [BODY]: the answer's text in ANSWER, its status in STATUS
call()
{
    local -a with=(-sS -X "$1" -m "$timeout" -o - -w '\n%{http_code}' -K -)
    [ -z "$socket" ] || with+=(--unix-socket "$socket")
    [ -z "${3-}" ] || with+=(-H 'Content-Type: application/json' --data-binary "$3")
    local out config=''
    [ -z "${PANTHEON_ADMIN_KEY-}" ] || config="header = \"Authorization: Bearer $PANTHEON_ADMIN_KEY\""
    out=$(curl "${with[@]}" "$server$2" <<< "$config") || die 1 "$server$2: no answer"
    STATUS=${out##*$'\n'}
    ANSWER=${out%$'\n'*}
}

wrong() { json "$ANSWER" && [ -n "${J[error.message]-}" ] && die "$1" "$2: ${J[error.message]}"; die "$1" "$2: HTTP status $STATUS"; }

get() { call GET "$1"; [ "$STATUS" = 200 ] || wrong 1 "$1"; json "$ANSWER" || die 1 "$1: the answer is not JSON"; }

# What the server has: HAS[NAME.path], .state, .ctx-cap, ...; names in HAVE.
declare -A HAS
look()
{
    local i n
    get /admin/models
    HAS=() HAVE=()
    number models.#; n=$REPLY
    for ((i = 0; i < n; i++)); do
        local name=${J[models.$i.name]}
        HAVE+=("$name")
        HAS[$name.path]=${J[models.$i.path]-}
        HAS[$name.state]=${J[models.$i.state]-}
        HAS[$name.error]=${J[models.$i.error]-}
        HAS[$name.ctx-cap]=${J[models.$i.ctx_cap]-0}
        HAS[$name.max-sessions]=${J[models.$i.max_sessions]-0}
        HAS[$name.max-concurrent]=${J[models.$i.max_concurrent]-0}
        HAS[$name.reasoning-budget]=${J[models.$i.reasoning_budget]-}
        local dies='' k
        number "models.$i.dies.#"
        for ((k = 0; k < REPLY; k++)); do dies=${dies:+$dies,}${J[models.$i.dies.$k]}; done
        HAS[$name.dies]=$dies
    done
}

# ---- models.conf ----

declare -A WANT COMMON
WANTED=()
trim() { REPLY=${1#"${1%%[![:space:]]*}"}; REPLY=${REPLY%"${REPLY##*[![:space:]]}"}; }

read_conf()
{
    local line key value name='' n=0
    [ -r "$conf" ] || die 2 "$conf: cannot be read"
    while IFS= read -r line || [ -n "$line" ]; do
        n=$((n + 1))
        trim "$line"
        line=$REPLY
        case $line in '' | '#'*) continue ;; esac
        if [[ $line =~ ^\[model[[:space:]]+(.*[^[:space:]])[[:space:]]*\]$ ]]; then
            name=${BASH_REMATCH[1]}
            [ -z "${WANT[$name.name]-}" ] || die 2 "$conf:$n: the model '$name' is there twice"
            WANT[$name.name]=$name
            WANTED+=("$name")
            for key in "${!COMMON[@]}"; do WANT[$name.$key]=${COMMON[$key]}; done
            continue
        fi
        [[ $line == *=* ]] || die 2 "$conf:$n: expected key = value or [model NAME]"
        trim "${line%%=*}"; key=$REPLY
        trim "${line#*=}"; value=$REPLY
        case $key in
        model) [ -n "$name" ] || die 2 "$conf:$n: 'model' belongs into a section, [model NAME]"
               WANT[$name.path]=$value; continue ;;
        dies) [[ $value =~ ^[0-9]+(,[0-9]+)*$ ]] || die 2 "$conf:$n: dies: expected numbers with commas between them" ;;
        ctx-cap | max-sessions | max-concurrent | reasoning-budget)
            [[ $value =~ ^[0-9]+$ ]] || die 2 "$conf:$n: $key: expected a number" ;;
        kv-type | template | alias | residency) die 2 "$conf:$n: $key can be chosen only when the server starts" ;;
        *) [ -z "$name" ] || die 2 "$conf:$n: $key: a model has no such key"
           continue ;;          # of the whole server: pantheon serve --config reads it
        esac
        if [ -n "$name" ]; then WANT[$name.$key]=$value; else COMMON[$key]=$value; fi
    done < "$conf"
    for name in ${WANTED[@]+"${WANTED[@]}"}; do
        [ -n "${WANT[$name.path]-}" ] || die 2 "$conf: [model $name]: the file is missing: expected model = FILE"
    done
}

# ---- the difference ----

# What makes NAME differ from models.conf, in words; empty: nothing.
differs()
{
    local name=$1 key
    REPLY=''
    [ "${HAS[$name.path]}" = "${WANT[$name.path]}" ] || REPLY="file ${HAS[$name.path]}"
    for key in ctx-cap max-sessions max-concurrent reasoning-budget dies; do
        [ -z "${WANT[$name.$key]-}" ] || [ "${HAS[$name.$key]}" = "${WANT[$name.$key]}" ] ||
            REPLY="${REPLY:+$REPLY, }$key ${HAS[$name.$key]:-none}"
    done
}

# UNLOAD and LOAD, and what is said about it in NOTES.
make_plan()
{
    local name
    UNLOAD=() LOAD=() NOTES=()
    for name in ${HAVE[@]+"${HAVE[@]}"}; do
        [ -z "${WANT[$name.name]-}" ] || continue
        if [ $prune = 1 ]; then
            UNLOAD+=("$name"); NOTES+=("unload $name (not in $conf)")
        else
            NOTES+=("leave  $name (not in $conf; --prune would unload it)")
        fi
    done
    for name in ${WANTED[@]+"${WANTED[@]}"}; do
        case ${HAS[$name.state]-absent} in
        absent) LOAD+=("$name"); NOTES+=("load   $name from ${WANT[$name.path]}") ;;
        failed) LOAD+=("$name"); NOTES+=("load   $name from ${WANT[$name.path]} again (${HAS[$name.error]})") ;;
        *)
            differs "$name"
            if [ -z "$REPLY" ]; then
                NOTES+=("keep   $name")
            else
                UNLOAD+=("$name"); LOAD+=("$name"); NOTES+=("reload $name (it has $REPLY)")
            fi ;;
        esac
    done
}

# ---- doing it ----

# Free bytes for a model on DIES (empty: any), into REPLY.
free_bytes()
{
    local i n host limit used index best=''
    get /admin/memory
    number host.available; host=$REPLY
    number limit; limit=$REPLY
    number used; used=$REPLY
    if [ "$limit" != 0 ]; then
        [ $((limit - used)) -ge "$host" ] || host=$((limit > used ? limit - used : 0))
    fi
    get /admin/dies
    number dies.#; n=$REPLY
    for ((i = 0; i < n; i++)); do
        number "dies.$i.index"; index=$REPLY
        case ,${1:-$index}, in *",$index,"*) ;; *) continue ;; esac
        number "dies.$i.free_bytes"
        [ "${J[dies.$i.kind]-}" != cpu ] || [ "$REPLY" -le "$host" ] || REPLY=$host
        # on any of them: the roomiest; on those named: the tightest
        if [ -z "$best" ] || { [ -n "$1" ] && [ "$REPLY" -lt "$best" ]; } || { [ -z "$1" ] && [ "$REPLY" -gt "$best" ]; }; then
            best=$REPLY
            LEVEL=${J[dies.$i.level]-OK}
        fi
    done
    [ -n "$best" ] || die 1 "the server has no die ${1:-at all}"
    REPLY=$best
}

# Until nothing comes or goes, no die of DIES is in need, and free memory stands still.
settle()
{
    local until=$((SECONDS + timeout)) before=-1 name moving d
    while :; do
        look
        moving=''
        for name in ${HAVE[@]+"${HAVE[@]}"}; do
            case ${HAS[$name.state]} in loading | draining | unloading) moving="the model '$name' is ${HAS[$name.state]}" ;; esac
        done
        free_bytes "$1"
        case $LEVEL in TIGHT | CRITICAL) moving="memory is $LEVEL" ;; esac
        d=$((REPLY - before))
        if [ -z "$moving" ] && [ "$before" -ge 0 ] && [ $((d < 0 ? -d : d)) -le $((REPLY / 50)) ]; then
            return
        fi
        before=$REPLY
        [ $SECONDS -lt $until ] || die 3 "it does not settle: ${moving:-free memory goes up and down}"
        sleep 0.5
    done
}

unload()
{
    local until=$((SECONDS + timeout))
    quote "$1"
    call POST /admin/models/unload "{\"name\":$REPLY}"
    [ "$STATUS" = 200 ] || [ "$STATUS" = 404 ] || wrong 1 "$1: cannot be unloaded"
    while :; do
        look
        [ -n "${HAS[$1.state]-}" ] || break
        [ $SECONDS -lt $until ] || die 1 "$1: still ${HAS[$1.state]} after $timeout s"
        sleep 0.5
    done
    say "unloaded $1"
}

load()
{
    local name=$1 body key file need dies=${WANT[$1.dies]-}
    file=${WANT[$name.path]}
    settle "$dies"
    if need=$(wc -c < "$file" 2> /dev/null); then
        free_bytes "$dies"
        [ $((need + headroom)) -le "$REPLY" ] ||
            die 3 "$name: $file has $((need >> 20)) MiB and $((headroom >> 20)) MiB are to stay free, but $((REPLY >> 20)) MiB is all there is"
    fi
    quote "$name"; body="{\"name\":$REPLY"
    quote "$file"; body="$body,\"path\":$REPLY,\"wait\":true"
    [ -z "$dies" ] || body="$body,\"dies\":[$dies]"
    for key in ctx-cap max-sessions max-concurrent reasoning-budget; do
        [ -z "${WANT[$name.$key]-}" ] || body="$body,\"${key//-/_}\":${WANT[$name.$key]}"
    done
    call POST /admin/models/load "$body}"
    case $STATUS in
    200) say "loaded $name" ;;
    507) wrong 3 "$name" ;;
    *) wrong 1 "$name: cannot be loaded" ;;
    esac
}

read_conf
look
make_plan
for note in ${NOTES[@]+"${NOTES[@]}"}; do say "$note"; done
if [ ${#UNLOAD[@]} = 0 ] && [ ${#LOAD[@]} = 0 ]; then
    say 'nothing to do'
    exit 0
fi
[ $plan = 0 ] || exit 0

# What can never fit is refused before anything is unloaded for it.
get /admin/memory
number host.total; total=$REPLY
number limit
[ "$REPLY" = 0 ] || [ "$REPLY" -ge "$total" ] || total=$REPLY
for name in ${LOAD[@]+"${LOAD[@]}"}; do
    need=$(wc -c < "${WANT[$name.path]}" 2> /dev/null) || continue
    [ "$total" = 0 ] || [ $((need + headroom)) -le "$total" ] ||
        die 3 "$name: ${WANT[$name.path]} has $((need >> 20)) MiB and $((headroom >> 20)) MiB are to stay free, but the server has $((total >> 20)) MiB in all"
done
for name in ${UNLOAD[@]+"${UNLOAD[@]}"}; do unload "$name"; done
for name in ${LOAD[@]+"${LOAD[@]}"}; do load "$name"; done
settle ''
make_plan
if [ ${#UNLOAD[@]} != 0 ] || [ ${#LOAD[@]} != 0 ]; then
    die 1 "something else changes the server's models: ${UNLOAD[*]-} ${LOAD[*]-} are not as they should be"
fi
say "the server has what $conf says"
