"""The names that the installed frameworks have; each is asked once, in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from typing import Any

from installed import place
from official_lists import spellings

from unamp.migrate.spellings import table

#: For each framework: `known(name)` for a spelling without dots, and `roots`, where dotted
#: spellings start.
SPELLING_PROBES = {
    "torch": """
import torch as root
roots = [root]
known = lambda name: hasattr(root.ops.aten, name)
""",
    "paddle": """
import paddle as root
roots = [root]
names = {*root.base.core.get_all_op_names(), *dir(root._C_ops), *dir(root)}
known = names.__contains__
""",
    "mindspore": """
import mindspore as root
roots = [root]
from mindspore import mint, nn, ops
from mindspore.ops import auto_generate, operations
known = lambda name: any(hasattr(module, name) for module in (operations, auto_generate, ops))
""",
    "tensorflow": """
import types
import keras
import tensorflow as root
roots = [root, types.SimpleNamespace(keras=keras)]  # `tf.keras` has names of Keras 2 in place of some of Keras 3
from tensorflow.python.framework import op_def_registry
known = lambda name: op_def_registry.get(name) is not None or hasattr(root, name)
""",  # noqa: E501
}

FRAMEWORKS = tuple(SPELLING_PROBES)

#: The vocabulary's spellings come first: to look for a name imports modules.
RESOLVE = """
import functools, importlib, inspect, json, sys

def is_spelled(name):
    parts = name.split(".")
    return any(led(root, parts) is not None for root in roots) if parts[1:] else known(name)

def led(value, parts):
    try:
        return functools.reduce(getattr, parts, value)
    except AttributeError:
        return None

def found(name):
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = led(importlib.import_module(".".join(parts[:count])), parts[count:])
        except ImportError:
            continue
        if value is not None:
            return value

def signature(value):
    try:
        return [n for n, p in inspect.signature(value).parameters.items()
                if n != "self" and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    except (TypeError, ValueError):
        return None

asked = json.load(sys.stdin)
absent = [name for name in asked["spellings"] if not is_spelled(name)]
values = {name: found(name) for name in asked["names"]}
answers = {n: [v is not None, signature(v) if callable(v) else None] for n, v in values.items()}
print("\\n" + json.dumps([absent, answers]))
"""


@cache
def names_in(framework: str) -> tuple[set[str], dict[str, Any]]:
    """Return the spellings of the vocabulary that a framework lacks, and the names of its tables.

    Of each name in the tables of `unamp migrate`: whether it is there, and its arguments' names.
    """
    asked = {
        "spellings": sorted(spellings(framework)),
        "names": [row.name for row in table().rows.values() if row.framework == framework],
    }
    absent, migrated = ask(framework, SPELLING_PROBES[framework] + RESOLVE, json.dumps(asked))
    return set(absent), migrated


def ask(framework: str, script: str, stdin: str = "") -> Any:
    """Return the last line of a script's output, as JSON; the script may import the framework."""
    place(framework)
    command = [sys.executable, "-W", "ignore", "-c", script]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"asking {framework} failed:\n{done.stderr[-2000:]}"
    return json.loads(done.stdout.splitlines()[-1])
