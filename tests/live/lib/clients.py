# SPDX-License-Identifier: AGPL-3.0-only
"""What the tests of tests/clients share."""
import os
import subprocess
import sys

from serving import clean_env

DEMO = "models/demo.gguf"
REAL = "SmolLM2-135M-Instruct.Q4_1.gguf"

TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Get the weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 24}}, "required": ["city"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "add", "description": "Add two numbers", "parameters": {
        "type": "object", "properties": {
            "a": {"type": "integer", "minimum": 0, "maximum": 999}, "b": {"type": "integer", "minimum": 0, "maximum": 999}}, "required": ["a", "b"], "additionalProperties": False}}},
]


def arguments(checks, real=True):
    """The program, and the models to serve: (name, path)."""
    pantheon = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "build/pantheon")
    served = [("demo", DEMO)]
    path = os.path.join(os.environ.get("PANTHEON_MODELS") or "../shared/models", REAL)
    if real and os.path.exists(path):
        served.append(("smol", path))
    elif real:
        checks.skip("the real model: %s is not there" % path)
    return pantheon, served


def long_model(pantheon, folder):
    """Noise, but fast and with a long context."""
    path = os.path.join(folder, "long.gguf")
    subprocess.run([pantheon, "synth", path, "--shape", "tiny", "--ctx", "32768", "--seed", "1", "-q"], check=True, env=clean_env())
    return path


def folder(pantheon):
    """Where setup.sh has put packages: beside the program."""
    return os.environ.get("CLIENTS", os.path.join(os.path.dirname(pantheon), "clients"))
