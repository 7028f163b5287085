#!/usr/bin/env python3
"""sampling-vectors.json -> samplers.txt:  python3 convert.py < sampling-vectors.json > samplers.txt

Only what pn_sampling can express is kept: no min_keep, no top_p 0 (zero means off there), no
negative temperature (refused there).  Frequency and presence count generated tokens without a
window, so of each history the last `last_n` tokens are given as generated, the others as prompt.
"""
import json
import sys

NAMES = {"k": "top_k", "p": "top_p", "min_p": "min_p", "t": "temperature"}


def settings(case):
    """The pn_sampling fields of a case, or None when it has no counterpart."""
    kind, params = case["sampler"], case["params"]
    if params.get("min_keep"):
        return None
    if kind in ("top_k", "top_p", "temperature", "chain"):
        out = {NAMES[k]: v for k, v in params.items() if k in NAMES}
    elif kind == "min_p":
        out = {"min_p": params["p"]}
    elif kind == "penalties":
        out = {"repeat_penalty": params["repeat"], "frequency_penalty": params["frequency"],
               "presence_penalty": params["presence"], "repeat_last_n": params["last_n"]}
        if params["last_n"] == 0:
            out = {"repeat_penalty": 1}
    else:
        return None
    if out.get("top_p") == 0 or out.get("temperature", 1) < 0:
        return None
    out.setdefault("temperature", 1)
    return out


data = json.load(sys.stdin)
print("# made by convert.py; see README.md")
print("logits", *data["logits"])
for case in data["cases"]:
    fields = settings(case)
    if fields is None:
        continue
    print("case", case["sampler"])
    for name, value in fields.items():
        print("set", name, value)
    if "order" in case["params"]:
        print("order", ";".join(case["params"]["order"]))
    history = case.get("history") or []
    n = case["params"].get("last_n", 0)
    cut = max(len(history) - n, 0)
    if history[:cut]:
        print("prompt", *history[:cut])
    if history[cut:]:
        print("generated", *history[cut:])
    for token, logit, p in case["out"]:
        print("out", token, logit, p)
    print("end")
