#!/bin/sh
# SPDX-License-Identifier: AGPL-3.0-only
#
# setup.sh - the clients that tests/clients needs, pinned, into a folder of their own.
#
#     tests/clients/setup.sh build/clients
#
# Python's packages go into FOLDER/venv, Node's into FOLDER/node; what is there already is left alone.  What cannot
# be installed is said in a SKIP line, and its tests skip themselves.
set -u
here=$(cd "$(dirname "$0")" && pwd)
to=$1
mkdir -p "$to" && to=$(cd "$to" && pwd) || exit 1

# stamp FILE...: what an installation was made from
stamp() { cat "$@" | cksum; }

if ! command -v python3 > /dev/null; then
    echo 'SKIP clients of PyPI: no python3'
elif [ "$(stamp "$here/requirements.txt")" != "$(cat "$to/venv/stamp" 2> /dev/null)" ]; then
    rm -rf "$to/venv"
    if python3 -m venv "$to/venv" > "$to/pip.log" 2>&1 &&
        "$to/venv/bin/python3" -m pip install -q -r "$here/requirements.txt" >> "$to/pip.log" 2>&1; then
        stamp "$here/requirements.txt" > "$to/venv/stamp"
    else
        echo "SKIP clients of PyPI: $(tail -n 1 "$to/pip.log")"
        rm -rf "$to/venv"
    fi
fi

if ! command -v node > /dev/null || ! command -v npm > /dev/null; then
    echo 'SKIP clients of npm: no node, or no npm'
elif [ "$(stamp "$here/package.json" "$here/package-lock.json")" != "$(cat "$to/node/stamp" 2> /dev/null)" ]; then
    rm -rf "$to/node"
    mkdir -p "$to/node"
    cp "$here/package.json" "$here/package-lock.json" "$to/node/"
    if (cd "$to/node" && npm ci --no-audit --no-fund --ignore-scripts) > "$to/npm.log" 2>&1; then
        stamp "$here/package.json" "$here/package-lock.json" > "$to/node/stamp"
    else
        echo "SKIP clients of npm: $(grep -v '^$' "$to/npm.log" | head -n 1)"
        rm -rf "$to/node"
    fi
fi
exit 0
