#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# test_cli.sh - the program on the demo model, as a user would call it.
#
#     sh tests/live/test_cli.sh build/pantheon [MODEL]
#
# Run from the repository root.  Needs nothing but a shell; what needs python3 is skipped without it.

pantheon=${1:-build/pantheon}
model=${2:-models/demo.gguf}
case $pantheon in */*) ;; *) pantheon=./$pantheon ;; esac

# A stranger's PN_* variables are an error by design; tests want none.
for name in $(env | sed -n 's/^\(PN_[A-Z0-9_]*\)=.*/\1/p'); do
    unset "$name"
done

tmp=$(mktemp -d) || exit 1
trap 'rm -rf "$tmp"' EXIT
trap 'exit 130' INT TERM

passed=0
failed=0
skipped=0

pass() { passed=$((passed + 1)); }
fail() {
    failed=$((failed + 1))
    echo "FAIL $1"
    [ ! -s "$tmp/err" ] || sed 's/^/    /' "$tmp/err" | head -5
}
skip() {
    skipped=$((skipped + 1))
    echo "SKIP $1"
}

# check NAME: did the command before it succeed?
check() { if [ $? -eq 0 ]; then pass; else fail "$1"; fi; }

# exits CODE NAME ARGS...: stdout and stderr stay in $tmp/out and $tmp/err
exits() {
    want=$1
    name=$2
    shift 2
    "$pantheon" "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
    got=$?
    if [ $got -eq "$want" ]; then pass; else fail "$name: exit $got, expected $want"; fi
}

# usage NAME WORD ARGS...: exit 2, nothing on stdout, one line on stderr that holds WORD
usage() {
    name=$1
    word=$2
    shift 2
    exits 2 "$name" "$@"
    [ ! -s "$tmp/out" ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q -e "$word" "$tmp/err"
    check "$name: one line naming $word"
}

python=$(command -v python3 || true)

if [ ! -x "$pantheon" ] || [ ! -r "$model" ]; then
    echo "SKIP $pantheon or $model is not there"
    echo "0 passed, 0 failed, 1 skipped"
    exit 0
fi

# --- about -----------------------------------------------------------------------------------------

exits 0 "version" --version
[ "$(wc -l <"$tmp/out")" -eq 2 ] && sed -n 1p "$tmp/out" | grep -q '^Pantheon v[0-9]*\.[0-9]*\.[0-9]*$' &&
    sed -n 2p "$tmp/out" | grep -q '^backend=[a-z]* build=[^ ]* isa=[a-z0-9]*$'
check "version: two lines of a fixed form"
exits 0 "backend" --backend
grep -q -x -e cpu -e cuda -e tt "$tmp/out"
check "backend: one word"
exits 0 "no arguments: help"
grep -q 'usage: pantheon' "$tmp/out"
check "help names the usage"
for command in run inspect plan tokenize detokenize logits perplexity bench quantize convert synth; do
    exits 0 "$command --help" $command --help
    grep -q -e '--quiet' "$tmp/out"
    check "$command --help lists flags"
done
"$pantheon" run --help | grep -e '--temp ' | grep -q 'default: 0.8'
check "help tells defaults"

# --- usage errors ----------------------------------------------------------------------------------

usage "unknown command" bogus bogus
usage "unknown flag" --bogus run -m "$model" -p x --bogus
usage "unknown flag without a command" --bogus --bogus
usage "malformed number" --temp run -m "$model" -p x --temp warm
usage "number out of range" --top-p run -m "$model" -p x --top-p=1.5
usage "missing value" --ctx run -m "$model" -p x --ctx
usage "choice" 'f16|f32' run -m "$model" -p x --kv-type f99
usage "size" --mem-limit run -m "$model" -p x --mem-limit 12Q
usage "no model" --model run -p x
usage "no prompt" --prompt run -m "$model"
usage "prompt and file" --file run -m "$model" -p x -f x
usage "sampler name" --samplers run -m "$model" -p x --samplers 'top_k;bogus'
usage "token out of range" 99999999 detokenize -m "$model" --tokens 99999999
usage "too few words" usage quantize a b
usage "too many words" usage inspect a b
export PN_THREADS=many
usage "malformed variable" PN_THREADS run -m "$model" -p x
unset PN_THREADS
export PN_BOGUS=1
usage "unknown variable" PN_BOGUS run -m "$model" -p x
unset PN_BOGUS
export PN_CPU=bogus
usage "unknown instruction set" PN_CPU --version
unset PN_CPU
export PN_SIM_DIES='2;tps=0'
usage "simulated dies" "tps: '0'" --version
unset PN_SIM_DIES
exits 1 "absent file" inspect "$tmp/absent.gguf"
echo "not a model" >"$tmp/bad.gguf"
exits 1 "not a model" inspect "$tmp/bad.gguf"
[ -s "$tmp/err" ]
check "not a model: says why"

# --- tokens ----------------------------------------------------------------------------------------

printf 'Hello, world!\n\n  Three  spaces,\ttab, caf\303\251, \360\237\230\200 and a bad byte \377.\r\n' >"$tmp/text"
"$pantheon" tokenize -m "$model" --file "$tmp/text" >"$tmp/ids" 2>"$tmp/err"
check "tokenize a file"
"$pantheon" detokenize -m "$model" --tokens-file "$tmp/ids" >"$tmp/back" 2>"$tmp/err" && cmp -s "$tmp/text" "$tmp/back"
check "detokenize gives the same bytes"
exits 0 "tokenize a word" tokenize -m "$model" "Hello"
ids=$(cat "$tmp/out")
exits 0 "tokenize --json" tokenize -m "$model" "Hello" --json
[ "[$ids]" = "$(cat "$tmp/out")" ]
check "tokenize --json is the same list"
exits 0 "detokenize --tokens" detokenize -m "$model" --tokens "$ids"
[ "$(cat "$tmp/out")" = "Hello" ] && [ "$(wc -c <"$tmp/out")" -eq 5 ]
check "detokenize adds no newline"

# --- inspect, plan ---------------------------------------------------------------------------------

exits 0 "inspect" inspect "$model" --tensors
grep -q 'general.architecture' "$tmp/out" && grep -q 'token_embd.weight' "$tmp/out"
check "inspect shows metadata and tensors"
exits 0 "plan" plan "$model"
grep -q -x fits "$tmp/out"
check "plan tells the verdict"
exits 3 "plan that does not fit" plan "$model" --ctx 2048 --mem-limit 1M
if [ -n "$python" ]; then
    "$pantheon" plan -m "$model" --json 2>"$tmp/err" | "$python" -c '
import json, sys
p = json.load(sys.stdin)
assert p["weight_bytes"] > 0 and p["kv_bytes_per_token"] > 0 and p["fits"] is True and p["n_vocab"] > 0' 2>>"$tmp/err"
    check "plan --json"
    "$pantheon" inspect "$model" --tensors --json 2>"$tmp/err" | "$python" -c '
import json, sys
d = json.load(sys.stdin)
assert len(d["tensors"]) == d["n_tensors"] > 0 and d["metadata"]["general.architecture"]' 2>>"$tmp/err"
    check "inspect --json"
else
    skip "JSON checks: no python3"
fi

# --- a Hugging Face folder -------------------------------------------------------------------------

folder=tests/vectors/hf/mixtral_f32
if [ -d "$folder" ]; then
    exits 0 "inspect a folder" inspect "$folder" --tensors
    grep -q 'llama.rope.pairing .*"neox"' "$tmp/out" && grep -q '48 x 64 x 4 .*blk.1.ffn_up_exps.weight' "$tmp/out"
    check "inspect shows a folder as a file"
    exits 0 "plan a folder" plan "$folder/" --ctx 128
    grep -q -x fits "$tmp/out"
    check "plan of a folder tells the verdict"
    exits 0 "run a folder" run -m "$folder" --prompt kel -n 4 --temp 0
    exits 0 "run one of its files" run -m "$folder/model.safetensors" --prompt kel -n 4 --temp 0 --residency stream
    exits 0 "tokenize with a folder" tokenize -m "$folder" kel
    exits 0 "quantize a folder" quantize "$folder" "$tmp/folder.gguf" F32
    exits 0 "run what became of it" run -m "$tmp/folder.gguf" --prompt kel -n 4 --temp 0
    exits 1 "a folder without a model" inspect tests/vectors/hf/st
    grep -q 'there is no config.json' "$tmp/err"
    check "a folder without a model says so"
fi

# --- run -------------------------------------------------------------------------------------------

exits 0 "run" run -m "$model" -p "Once upon a time" --temp 0 -n 24
cp "$tmp/out" "$tmp/first"
tail -n 1 "$tmp/err" | grep -q 'prefill .* tok/s, decode .* tok/s, .*KV .*peak .*seed '
check "run: last line on stderr"
exits 0 "run again, one thread" --model "$model" --prompt "Once upon a time" --temp=0 --max-tokens=24 -t 1 --quiet
cmp -s "$tmp/out" "$tmp/first" && [ -s "$tmp/out" ]
check "greedy twice: same text, any number of threads"
[ ! -s "$tmp/err" ]
check "--quiet: nothing on stderr"
exits 0 "no stream" run -m "$model" -p "Once upon a time" --temp 0 -n 24 --no-stream --batch 2
cmp -s "$tmp/out" "$tmp/first"
check "--no-stream and --batch: same text"
exits 0 "seeded" run -m "$model" -p "Once" --temp 1 --seed 7 -n 16
cp "$tmp/out" "$tmp/first"
export PN_SEED=7
exits 0 "seeded by variable" run -m "$model" -p "Once" --temp 1 -n 16
unset PN_SEED
cmp -s "$tmp/out" "$tmp/first"
check "same seed, same text"
exits 0 "prompt only" run -m "$model" -p "Once" -n 0
[ ! -s "$tmp/out" ]
check "-n 0 prints nothing"
exits 0 "log-probabilities" run -m "$model" -p "Once upon a time" --temp 0 -n 24 --logprobs 2 --quiet --no-stream
[ "$(wc -l <"$tmp/err")" -gt 4 ] && [ "$(grep -c '^{"token":".*,"part":"content","top_logprobs":\[{.*},{.*}\]}$' "$tmp/err")" -eq "$(wc -l <"$tmp/err")" ]
check "--logprobs: a line of JSON for each token"
cp "$tmp/err" "$tmp/first.err"
if [ -n "$python" ]; then
    "$python" - "$tmp/first.err" "$tmp/out" 2>>"$tmp/err" <<'END'
import json, sys
lines = [json.loads(l) for l in open(sys.argv[1], encoding="utf-8")]
assert b"".join(bytes(l["bytes"]) for l in lines) + b"\n" == open(sys.argv[2], "rb").read()
for l in lines:
    a, b = l["top_logprobs"]
    assert 0 >= a["logprob"] >= b["logprob"] and (l["id"] == a["id"]) == (l["logprob"] == a["logprob"]), l
END
    check "--logprobs: bytes are the text, the greedy token is the likeliest"
else
    skip "--logprobs as JSON: no python3"
fi
stop=$(cut -c 6-8 "$tmp/out" | head -n 1)
exits 0 "stop string" run -m "$model" -p "Once upon a time" --temp 0 -n 24 --logprobs 0 --quiet --stop "$stop"
[ -n "$stop" ] && ! grep -q -F -e "$stop" "$tmp/out" && [ "$(wc -l <"$tmp/err")" -lt "$(wc -l <"$tmp/first.err")" ]
check "--stop: neither the text nor the tokens of it"
exits 0 "stop string, told" run -m "$model" -p "Once upon a time" --temp 0 -n 24 --stop "$stop"
tail -n 1 "$tmp/err" | grep -q 'stop string$'
check "the last line says that a stop string ended it"
usage "too many alternatives" --logprobs run -m "$model" -p x --logprobs 21
exits 3 "run over budget" run -m "$model" -p x -n 4 --ctx 2048 --mem-limit 512K

# --- chat ------------------------------------------------------------------------------------------

exits 0 "chat, one message" run -m "$model" --chat -p "Hello" --temp 0 -n 24
cp "$tmp/out" "$tmp/first"
grep -q . "$tmp/out"
check "chat answers"
printf 'Hello\nWhat is 2 + 3?\n' | "$pantheon" run -m "$model" --chat --temp 0 -n 24 >"$tmp/out" 2>"$tmp/err"
check "chat piped"
n=$(wc -l <"$tmp/first")
head -n "$n" "$tmp/out" | cmp -s - "$tmp/first" && [ "$(wc -l <"$tmp/out")" -gt "$n" ]
check "chat piped: first answer as before, then a second"
exits 1 "chat, context full" run -m "$model" --chat -p "Hello, this message does not fit" --ctx 8
grep -q 'context' "$tmp/err"
check "chat says that the context is full"

exits 2 "chat format" run -m "$model" --chat -p "Hello" --chat-format bogus
grep -q -e '--chat-format' "$tmp/err"
check "unknown chat format is named"

# --- logits, perplexity ----------------------------------------------------------------------------

exits 0 "logits" logits -m "$model" --tokens 1,2,3,4,5 -o "$tmp/a.f32"
exits 0 "logits in small steps" logits -m "$model" --tokens-file "$tmp/ids" -o "$tmp/b.f32" --batch 1
exits 0 "logits in large steps" logits -m "$model" --tokens-file "$tmp/ids" -o "$tmp/c.f32"
cmp -s "$tmp/b.f32" "$tmp/c.f32"
check "logits do not depend on --batch"
size=$(wc -c <"$tmp/a.f32")
[ "$size" -gt 0 ] && [ $((size % 20)) -eq 0 ]
check "logits: five rows of float32"
i=0
while [ $i -lt 60 ]; do
    echo "Once upon a time there was a small dog who liked to count: 1, 2, 3, $i."
    i=$((i + 1))
done >"$tmp/story"
exits 0 "perplexity" perplexity -m "$model" --file "$tmp/story" --ctx 64 --chunks 2 --json
cp "$tmp/out" "$tmp/ppl"
if [ -n "$python" ]; then
    "$pantheon" tokenize -m "$model" --file "$tmp/story" --bos >"$tmp/ids" 2>"$tmp/err"
    bos=$("$pantheon" tokenize -m "$model" "" --bos 2>>"$tmp/err")
    for w in 0 1; do
        "$python" - "$tmp/ids" $w "$bos" >"$tmp/w$w" <<'PY'
import sys
ids = [int(x) for x in open(sys.argv[1]).read().split(",")]
w, bos = int(sys.argv[2]), sys.argv[3].split(",")[0]
window = ids[w * 64:w * 64 + 64]
if bos:
    window[0] = int(bos)
print(",".join(map(str, window)))
PY
        "$pantheon" logits -m "$model" --tokens-file "$tmp/w$w" -o "$tmp/w$w.f32" -q 2>>"$tmp/err"
    done
    "$python" - "$tmp" <<'PY' 2>>"$tmp/err"
import array, json, math, sys
tmp, nll = sys.argv[1], []
for w in (0, 1):
    ids = [int(x) for x in open(f"{tmp}/w{w}").read().split(",")]
    v = array.array("f", open(f"{tmp}/w{w}.f32", "rb").read())
    n = len(v) // 64
    for pos in range(32, 63):
        row = v[pos * n:(pos + 1) * n]
        top = max(row)
        nll.append(math.log(sum(math.exp(x - top) for x in row)) + top - row[ids[pos + 1]])
want = math.exp(sum(nll) / len(nll))
got = json.load(open(f"{tmp}/ppl"))
assert got["tokens"] == len(nll) and abs(got["perplexity"] / want - 1) < 1e-6, (got, want)
PY
    check "perplexity is what the logits say"
else
    skip "perplexity against logits: no python3"
fi

# --- bench -----------------------------------------------------------------------------------------

exits 0 "bench table" bench -m "$model" -p 8 -n 2 -r 1
[ "$(wc -l <"$tmp/out")" -eq 4 ]
check "bench: head and two rows"
exits 0 "bench streams" bench -m "$model" -p 8 -n 2 -r 1 --streams 1,3
[ "$(grep -c ' x3 ' "$tmp/out")" -eq 2 ] && [ "$(wc -l <"$tmp/out")" -eq 6 ]
check "bench --streams: a row each"
exits 0 "bench json" bench -m "$model" -p 16 -n 4 -d 0,4 -r 1 -o json
if [ -n "$python" ]; then
    "$python" - "$tmp/out" <<'PY' 2>"$tmp/err"
import json, sys
rows = json.load(open(sys.argv[1]))
names = """model n_params size_bytes type backend isa n_threads n_batch kv_type n_prompt n_gen n_depth n_streams
samples_ts avg_ts stddev_ts weight_bytes_per_token read_gbs int8_tops share_of_limit""".split()
assert len(rows) == 4
for r in rows:
    assert sorted(r) == sorted(names), r
    assert r["avg_ts"] > 0 and len(r["samples_ts"]) == 1 and (r["n_gen"] == 0) != (r["n_prompt"] == 0)
PY
    check "bench -o json: names and rows"
else
    skip "bench -o json: no python3"
fi

# --- templates, answers, grammars ------------------------------------------------------------------

# prints NAME TEXT: what the command before it wrote is TEXT
prints() {
    printf '%s\n' "$2" | cmp -s - "$tmp/out"
    check "$1: prints $(printf '%s' "$2" | head -c 60)"
}

cat >"$tmp/t.jinja" <<'T'
{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% if tools %}<tool_call>{{ tools[0].function.name }}{% endif %}
T
echo '{"messages":[{"role":"user","content":"<|user|> Hi"}]}' >"$tmp/in.json"
exits 0 "render" render --template "$tmp/t.jinja" --input "$tmp/in.json"
printf '%s' '<|user|><|user|> Hi' | cmp -s - "$tmp/out"
check "render: the prompt and nothing else"
exits 0 "render --segments" render --template "$tmp/t.jinja" --input "$tmp/in.json" --segments
prints "render --segments" '{"trusted":true,"text":"<|user|>"}
{"trusted":false,"text":"<|user|> Hi"}'
echo "{{ raise_exception('No.') }}" >"$tmp/no.jinja"
exits 1 "render: a template that refuses" render --template "$tmp/no.jinja" --input "$tmp/in.json"
grep -q 'No\.' "$tmp/err"
check "render: the template's own text"

cat >"$tmp/tools.json" <<'T'
[{"type":"function","function":{"name":"f","parameters":{"type":"object","properties":{"n":{"type":"integer","maximum":9}},"required":["n"]}}}]
T
printf 'Hi.\n<tool_call>\n{"name": "f", "arguments": {"n": 3}}\n</tool_call>' >"$tmp/raw"
"$pantheon" parse-output --syntax hermes --tools "$tmp/tools.json" <"$tmp/raw" >"$tmp/out" 2>"$tmp/err"
check "parse-output"
prints "parse-output" '{"reasoning_content":null,"content":"Hi.","tool_calls":[{"name":"f","arguments":{"n":3}}]}'
usage "parse-output without a syntax" syntax parse-output

cat >"$tmp/lines" <<'T'
Hi.
<tool_call>\n{"name": "f", "arguments": {"n": 3}}\n</tool_call>
<tool_call>\n{"name": "f", "arguments": {"n": 10}}\n</tool_call>
T
exits 0 "grammar --tools" grammar --tools "$tmp/tools.json" --syntax hermes --match-lines "$tmp/lines"
prints "grammar --tools" 'accept
accept
reject'
exits 0 "grammar --tool-choice required" grammar --tools "$tmp/tools.json" --syntax hermes --tool-choice f --match-lines "$tmp/lines"
prints "grammar --tool-choice f" 'reject
accept
reject'
exits 0 "grammar --tool-choice none" grammar --tools "$tmp/tools.json" --template "$tmp/t.jinja" --tool-choice none --match-lines "$tmp/lines"
prints "grammar --tool-choice none" 'accept
reject
reject'
usage "grammar --tools without a syntax" template grammar --tools "$tmp/tools.json"
printf '{"n": 3}\n{"n": 10}\n' >"$tmp/lines"
echo '{"type":"object","properties":{"n":{"type":"integer","maximum":9}},"required":["n"]}' >"$tmp/s.json"
exits 0 "grammar --json-schema" grammar --json-schema "$tmp/s.json" --match-lines "$tmp/lines"
prints "grammar --json-schema" 'accept
reject'
echo '{"type":"array","contains":{"const":1}}' >"$tmp/c.json"
exits 3 "grammar: a schema that cannot be enforced" grammar --json-schema "$tmp/c.json"
grep -q '/contains' "$tmp/err"
check "grammar: the pointer of the keyword"
sed 's/"name":"f"/"name":"f","strict":true/; s/"maximum":9/"not":{"multipleOf":3}/' "$tmp/tools.json" >"$tmp/strict.json"
exits 3 "run: a strict tool that cannot be enforced" run -m "$model" --chat --tools "$tmp/strict.json" -p Hi
grep -q '/0/function/parameters/properties/n/not' "$tmp/err"
check "run --tools: the pointer of the keyword"
exits 0 "run --tool-choice required" run -m "$model" --chat --tools "$tmp/tools.json" --tool-choice required -p "Hello" --temp 0 -n 60
grep -Eq '^\{"name":"f","arguments":\{"n": ?-?[0-9]' "$tmp/out"
check "run --tool-choice required: a call"
exits 0 "run --tool-choice none" run -m "$model" --chat --tools "$tmp/tools.json" --tool-choice none -p "Hello" --temp 0 -n 30
! grep -q '"arguments"' "$tmp/out"
check "run --tool-choice none: no call"
exits 0 "run --json-schema" run -m "$model" --chat --json-schema "$tmp/s.json" -p "A number?" --temp 0 -n 60
grep -Eq '^\{[[:space:]]*"n":[[:space:]]*-?[0-9]+[[:space:]]*\}$' "$tmp/out"
check "run --json-schema: an object"
usage "run --tool-choice without tools" tools run -m "$model" --chat --tool-choice none -p Hi

# --- making files ----------------------------------------------------------------------------------

exits 0 "convert" convert tests/vectors/hf/pth/odd.pth "$tmp/odd.safetensors"
test -s "$tmp/odd.safetensors"
check "convert writes a file"
exits 0 "quantize" quantize "$model" "$tmp/q.gguf" Q4_0
exits 0 "run what was quantised" run -m "$tmp/q.gguf" -p "Once upon a time" --temp 0 -n 8
usage "quantize: unknown type" . quantize "$model" "$tmp/x.gguf" Q9_9
exits 0 "synth" synth "$tmp/s.gguf" --shape tiny --seed 1
exits 0 "plan what was made" plan "$tmp/s.gguf" --ctx 256
exits 0 "run what was made" run -m "$tmp/s.gguf" -p "a" --temp 0 -n 4 --ctx 64

# --- quantised while loading: what quantize would have written -----------------------------------------

exits 0 "synth, 16 bits" synth "$tmp/h.gguf" --shape tiny --type F16 --seed 1
exits 0 "quantize it" quantize "$tmp/h.gguf" "$tmp/hq.gguf" Q4_K_M
exits 0 "logits of the file" logits -m "$tmp/hq.gguf" --tokens 1,2,3 -o "$tmp/a.f32"
exits 0 "logits, --load-type" logits -m "$tmp/h.gguf" --tokens 1,2,3 -o "$tmp/b.f32" --load-type q4_k_m
cmp -s "$tmp/a.f32" "$tmp/b.f32"
check "--load-type: the file's bits"
PN_LOAD_TYPE=q8_0 "$pantheon" plan "$tmp/h.gguf" --json | grep -q '"load_bytes":[1-9]'
check "PN_LOAD_TYPE: plan"
exits 0 "serve --check, --load-type" serve -m "$tmp/h.gguf" --load-type q8_0 --check
printf '[model a]\nmodel = %s\nload-type = q8_0\n' "$tmp/h.gguf" >"$tmp/serve.conf"
exits 0 "perplexity, --load-type" perplexity -m "$tmp/h.gguf" --file "$0" --ctx 32 --chunks 2 --load-type q8_0
exits 0 "serve --check, load-type in a file" serve --config "$tmp/serve.conf" --check
usage "--load-type: unknown" Q4_K_M run -m "$tmp/h.gguf" -p "a" -n 1 --load-type q9_9
usage "plan --load-type: unknown" Q4_K_M plan "$tmp/h.gguf" --load-type q9_9
usage "--load-type and mapped" anon run -m "$tmp/h.gguf" -p "a" -n 1 --load-type q8_0 --residency map

if [ $skipped -gt 0 ]; then
    echo "$passed passed, $failed failed, $skipped skipped"
else
    echo "$passed passed, $failed failed"
fi
[ $failed -eq 0 ]
