#!/usr/bin/env python3
# SPDX-License-Identifier: AGPL-3.0-only
"""Validate what noise writes under JSON Schemas with a validator that is not ours.

    python3 schema_noise.py NOISE MODEL COUNT SCHEMAS...

NOISE is the program of schema_noise.c; SCHEMAS are files like schema-vectors.json.  Every schema has
to compile; of its COUNT texts nearly all have to be complete, and every complete one has to be JSON
that the jsonschema package (draft 2020-12, formats checked) calls valid.  Two programs share the
schemas.  Prints FAIL and SKIP lines, then figures, then the summary; exits with 75 when the package
is not there.

Where the validator is helped, because it would judge by Python's rules instead of JSON's:
  numbers   are read as decimals, so that bounds are compared exactly; 1.0 stays an integer.
  patterns  are ECMA's: there \\d and \\w are ASCII, \\s has U+FEFF and not U+001C..1F and U+0085, . stops
            at CR, U+2028 and U+2029 too, and $ is the very end, not before a last newline.
  hostname  is RFC 1123's: one label is a name too, which older versions of the package deny.
  NaN, Infinity and lone surrogates are no JSON; json.loads takes them.
"""
import decimal
import json
import re
import subprocess
import sys
import threading

try:
    import jsonschema
except ImportError:
    sys.exit(75)

JOBS = 2
SHARE_OF_ALL = 0.99         # complete texts, of all and of each schema
SHARE_OF_EACH = 0.9
# A format without its helper package is not checked, and jsonschema says nothing.
HELPERS = {"date-time": "rfc3339_validator", "time": "rfc3339_validator", "duration": "isoduration", "uri": "rfc3987"}


SPACE = r"\t-\r \xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000\ufeff"
ECMA = {r"\d": "0-9", r"\w": "0-9A-Z_a-z", r"\s": SPACE}


def python_pattern(pattern):
    """An ECMA pattern as Python's re reads it; negated shorthands stand outside classes only."""
    out, in_class = "", False
    for part in re.findall(r"\\.|.", pattern, re.S):
        if part in ECMA:
            part = ECMA[part] if in_class else "[" + ECMA[part] + "]"
        elif part.lower() in ECMA:
            assert not in_class, pattern
            part = "[^" + ECMA[part.lower()] + "]"
        elif part in "[]":
            in_class = part == "["
        elif not in_class:
            part = {".": r"[^\n\r\u2028\u2029]", "$": r"\Z"}.get(part, part)
        out += part
    return out


def python_patterns(schema):
    if isinstance(schema, list):
        return [python_patterns(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    out = {key: python_patterns(value) for key, value in schema.items()}
    if isinstance(out.get("pattern"), str):
        out["pattern"] = python_pattern(out["pattern"])
    if isinstance(out.get("patternProperties"), dict):
        out["patternProperties"] = {python_pattern(key): value for key, value in out["patternProperties"].items()}
    return out


def is_integer(_, value):
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, decimal.Decimal) and value == value.to_integral_value())


def is_hostname(value):
    label = "[0-9A-Za-z]([-0-9A-Za-z]{0,61}[0-9A-Za-z])?"
    return not isinstance(value, str) or (len(value) <= 253 and re.fullmatch(rf"{label}(\.{label})*", value) is not None)


def validator_of(schema):
    base = jsonschema.Draft202012Validator
    usual = getattr(base, "FORMAT_CHECKER", None) or jsonschema.draft202012_format_checker
    formats = jsonschema.FormatChecker()
    formats.checkers = dict(usual.checkers, hostname=(is_hostname, ()))
    exact = jsonschema.validators.extend(base, type_checker=base.TYPE_CHECKER.redefine("integer", is_integer))
    return exact(schema, format_checker=formats)


def parse(text):
    def refuse(name):
        raise ValueError(name + " is not JSON")
    value = json.loads(text.decode("utf-8"), parse_constant=refuse, parse_float=decimal.Decimal)
    json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")      # lone surrogates
    return value


def formats_of(schema):
    if isinstance(schema, dict):
        if isinstance(schema.get("format"), str):
            yield schema["format"]
        schema = list(schema.values())
    if isinstance(schema, list):
        for part in schema:
            yield from formats_of(part)


def read_vectors(paths):
    vectors = []
    for path in paths:
        with open(path, "rb") as f:
            vectors += json.load(f)
    return vectors


def run_noise(command, lines):
    """The output of JOBS programs, as (index, finish, bytes)."""
    outputs = [None] * JOBS

    def one(job):
        done = subprocess.run(command + [str(job), str(JOBS)], input=lines, stdout=subprocess.PIPE)
        outputs[job] = done.stdout if done.returncode == 0 else None
    threads = [threading.Thread(target=one, args=(job,)) for job in range(JOBS)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for output in outputs:
        if output is None:
            raise RuntimeError("schema_noise did not finish")
        at = 0
        while at < len(output):
            end = output.index(b"\n", at)
            index, finish, size = output[at:end].split(b"\t")
            at = end + 1 + int(size)
            yield int(index), finish.decode(), output[end + 1:at]
            at += 1


class Tally:
    def __init__(self, vectors):
        self.vectors = vectors
        self.validators = [None] * len(vectors)
        self.total = [0] * len(vectors)
        self.complete = [0] * len(vectors)
        self.texts = set()
        self.refused = {}
        self.passed = self.failed = 0

    def check(self, ok, what):
        self.passed += ok
        self.failed += not ok
        if not ok and self.failed <= 50:
            print("FAIL " + what)

    def take(self, index, finish, text):
        name = self.vectors[index]["name"]
        if finish == "refused":
            self.refused[index] = text
            self.check(False, f"{name}: {text.decode()}")
            return
        self.total[index] += 1
        if finish != "stop":
            return
        self.complete[index] += 1
        self.texts.add((index, text))
        try:
            if self.validators[index] is None:
                exact = json.loads(json.dumps(self.vectors[index]["schema"]), parse_float=decimal.Decimal)
                self.validators[index] = validator_of(python_patterns(exact))
            errors = [e.message for e in self.validators[index].iter_errors(parse(text))]
        except ValueError as e:
            errors = [str(e)]
        self.check(not errors, f"{name}: {text!r:.300}: {'; '.join(errors)[:300]}")

    def finish(self, count):
        for i, v in enumerate(self.vectors):
            if i not in self.refused:
                self.check(self.total[i] == count and self.complete[i] >= SHARE_OF_EACH * count,
                           f"{v['name']}: {self.complete[i]} of {self.total[i]} texts are complete, expected nearly {count}")
        total, complete = sum(self.total), sum(self.complete)
        self.check(complete >= SHARE_OF_ALL * total, f"{complete} of {total} texts are complete")
        print(f"{len(self.vectors) - len(self.refused)} of {len(self.vectors)} schemas compile, {total} texts, "
              f"{complete} complete ({100 * complete / max(total, 1):.2f} %), {len(self.texts)} of them different")


def main():
    noise, model, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    vectors = read_vectors(sys.argv[4:])
    lines = "".join(json.dumps(v["schema"]) + "\n" for v in vectors).encode()
    skipped = 0
    for name in sorted(set(formats_of([v["schema"] for v in vectors]))):
        try:
            __import__(HELPERS.get(name, "json"))
        except ImportError:
            print(f"SKIP format {name} is not checked: no {HELPERS[name]} in Python")
            skipped += 1
    tally = Tally(vectors)
    for record in run_noise([noise, model, str(count)], lines):
        tally.take(*record)
    tally.finish(count)
    print(f"{tally.passed} passed, {tally.failed} failed" + (f", {skipped} skipped" if skipped else ""))
    return tally.failed != 0


sys.exit(main())
