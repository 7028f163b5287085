#!/usr/bin/env python3
"""sampling-vectors.json -> samplers.txt:  python3 convert.py < sampling-vectors.json > samplers.txt

All cases are kept.  Where pn_sampling says a thing differently: top_p 0 means off there, so the
smallest positive one stands for it; a negative temperature is refused there, so 0 does; a window of
0 is a sampler that is off.  Frequency and presence count generated tokens without a window, so of
each history the last `last_n` tokens are given as generated, the others as prompt.  Mirostat starts
with mu = 2 tau.
"""
import json
import sys

NAMES = {"k": "top_k", "p": "top_p", "min_p": "min_p", "t": "temperature"}


def penalties(params):
    if params["last_n"] == 0:
        return {"repeat_penalty": 1}
    return {"repeat_penalty": params["repeat"], "frequency_penalty": params["frequency"],
            "presence_penalty": params["presence"], "repeat_last_n": params["last_n"]}


def dry(params):
    return {"dry_multiplier": params["multiplier"], "dry_base": params["base"],
            "dry_allowed_length": params["allowed_length"], "dry_penalty_last_n": params["last_n"]}


def settings(case):
    """The pn_sampling fields of a case."""
    kind, params = case["sampler"], case["params"]
    if kind in ("top_k", "top_p", "temperature", "chain"):
        out = {NAMES[k]: v for k, v in params.items() if k in NAMES}
    elif kind == "min_p":
        out = {"min_p": params["p"]}
    elif kind == "typ_p":
        out = {"typical_p": params["p"]}
    elif kind == "top_n_sigma":
        out = {"top_n_sigma": params["n"]}
    elif kind == "xtc":
        out = {"xtc_probability": params["probability"], "xtc_threshold": params["threshold"]}
    elif kind == "dynatemp":
        out = {"temperature": params["t"], "dynatemp_range": params["range"],
               "dynatemp_exponent": params["exponent"]}
    elif kind == "penalties":
        out = penalties(params)
    elif kind == "dry":
        out = dry(params)
    elif kind == "mirostat_v2_truncate":
        out = {"mirostat": 2, "mirostat_tau": params["mu"] / 2}
    else:
        sys.exit("unknown sampler " + kind)
    if params.get("min_keep"):
        out["min_keep"] = params["min_keep"]
    if out.get("top_p") == 0:
        out["top_p"] = 1e-30
    out["temperature"] = max(out.get("temperature", 1), 0)
    return out


data = json.load(sys.stdin)
print("# made by convert.py; see README.md")
print("logits", *data["logits"])
for case in data["cases"]:
    print("case", case["sampler"])
    for name, value in settings(case).items():
        print("set", name, value)
    if "order" in case["params"]:
        print("order", ";".join(case["params"]["order"]))
    if "draw" in case:
        print("draw", case["draw"])
    for breaker in case["params"].get("breakers", []):
        print("breaker", *breaker)
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
