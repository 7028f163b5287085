#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# drops.sh PROGRAM - the compile lines of the README, run: the example against pantheon.c, the program
# from pantheon.c and pantheon_serve.c, the library inside a program as static functions.  The
# program from the drops answers like the one from the tree.  pantheon.c at -O2 is the object that make has beside
# PROGRAM, of the same line; what asks for other options is built at -O0, so the levels answer alike, too.
set -u
unset PANTHEON_GOLDEN                 # the program refuses PN_ variables it does not know
program=$1
cc=${CC:-cc}
dir=$(mktemp -d) || exit 1
trap 'rm -rf "$dir"' EXIT
passed=0 failed=0

check()         # check WHAT COMMAND...
{
    what=$1
    shift
    if "$@" > "$dir/log" 2>&1; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL $what: $(tail -n 3 "$dir/log" | tr '\n' ' ')"
    fi
}

if ! tools/amalgamate.sh "$dir" > "$dir/log" 2>&1; then
    echo "FAIL amalgamate.sh: $(head -n 3 "$dir/log" | tr '\n' ' ')"
    echo "0 passed, 1 failed"
    exit 1
fi
cp examples/embed.c examples/many.c examples/folder.c examples/from_memory.c "$dir"
printf '#define PN_API static\n#include "pantheon.c"\n#include <stdio.h>\nint main(void) { return puts(pn_version()) < 0; }\n' > "$dir/one.c"
root=$PWD
built=$(cd "$(dirname "$program")" && pwd)
archive=$built/libpantheon.a core=$built/drop/pantheon.o
in_dir() { (cd "$dir" && "$@"); }
run() { "$1" run --model "$root/models/demo.gguf" --chat --temp 0 --max-tokens 24 --prompt 'Count to five.' 2> /dev/null; }

# A compiler needs a minute for a drop: two at a time.
build()         # build NAME ARGUMENTS...: in the background; its last words are kept
{
    name=$1
    shift
    in_dir $cc "$@" -o "$name" > "$dir/$name.log" 2>&1 &
}
compiles()      # compiles NAME WHAT
{
    check "$2" sh -c 'cat "$1.log"; test -x "$1"' sh "$dir/$1"
}

build pantheon -O2 -DPANTHEON_CLI "$core" pantheon_serve.c -lm -lpthread
build one -O0 -w -DPN_ENABLE_SIMD=0 one.c -lm -lpthread
build embed -O2 embed.c "$core" -lm -lpthread
wait
# Without threads, and without files (the model comes from memory): the same bits at another -O, so the same answer.
build alone -O0 -Wall -Wextra -Werror -DPANTHEON_CLI -DPN_ENABLE_THREADS=0 pantheon.c pantheon_serve.c -lm
build from_memory -O0 -Wall -Wextra -Werror -DPN_ENABLE_THREADS=0 -DPN_ENABLE_FILES=0 from_memory.c pantheon.c -lm
wait
build many -O2 many.c "$archive" -lm -lpthread
build folder -O2 folder.c "$archive" -lm -lpthread
wait

compiles embed 'the example compiles'
check 'the example answers' sh -c '"$1/embed" models/demo.gguf "What is the capital of France?" | grep -q .' sh "$dir"
check 'the example says what is wrong' sh -c '! "$1/embed" /nowhere.gguf 2> "$1/err" && grep -q nowhere "$1/err"' sh "$dir"
compiles many 'the example of many compiles'
check 'and tells every story' sh -c '"$1/many" models/demo.gguf "Once upon a time" "The dog" > "$1/many.txt" && grep -q "^Once upon a time." "$1/many.txt" && grep -q "^The dog." "$1/many.txt"' sh "$dir"
compiles folder 'the example of a folder compiles'
check 'and goes on with a text' sh -c '"$1/folder" tests/vectors/hf/qwen3_tied "Once" > "$1/folder.txt" && grep -q "^qwen3_tied: qwen3, weights F32" "$1/folder.txt" && test "$(wc -l < "$1/folder.txt")" -gt 1' sh "$dir"
check 'and says what is wrong' sh -c '! "$1/folder" "$1" 2> "$1/err" && grep -q "no config.json" "$1/err"' sh "$dir"

compiles pantheon 'the program compiles'
run "$program" > "$dir/tree" && run "$dir/pantheon" > "$dir/drop"
check 'drops and tree answer alike' cmp "$dir/tree" "$dir/drop"
check 'the answer is not empty' test -s "$dir/drop"

compiles one 'a program may include pantheon.c'
check 'and calls it' "$dir/one"

compiles alone 'the program compiles without threads'
run "$dir/alone" > "$dir/drop"
check 'without threads it answers alike' cmp "$dir/tree" "$dir/drop"
compiles from_memory 'the memory example compiles'
"$dir/from_memory" models/demo.gguf 'Once upon a time' > "$dir/drop" 2> "$dir/log"
"$program" run -m models/demo.gguf -p 'Once upon a time' --temp 0 -n 40 2> /dev/null > "$dir/tree"
check 'a model in memory answers alike' cmp "$dir/tree" "$dir/drop"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
