"""The functions of Keras on PyTorch that are operations of the vocabulary: `keras.ops`, activations and losses.

They get other code while a region is open, since layers hold them. That code looks up what it calls: PyTorch's compiler
follows a name, and no function among the constants of code.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from typing import Any

from unamp.adapter.forwarding import forwarding
from unamp.adapter.keras_models import library
from unamp.adapter.patching import Patch
from unamp.adapter.replacing import CodePatch
from unamp.adapter.spellings import at_path
from unamp.vocabulary import vocabulary
from unamp_torch.keras_calls import function_as_one_operation

__all__ = ["called", "patches"]

#: Groups of operations whose functions are left to what they call: they keep what they are given, whatever the rule.
_LEFT = frozenset({"shape", "creation", "random", "cast"})

#: What is called in place of each function, by the function's path.
called: dict[str, Callable[..., Any]] = {}


def patches() -> Iterator[Patch]:
    """Yield the patches; of a function with two names, under the first."""
    taken: set[types.FunctionType] = set()
    for op in vocabulary().values():
        for path in op.spellings.get("tensorflow", ()):
            if not path.startswith("keras.") or op.group in _LEFT or op.name == "control_flow":
                continue
            function = at_path(library(), path.removeprefix("keras."))
            if isinstance(function, types.FunctionType) and function not in taken:
                taken.add(function)
                yield _patch(op.name, path, function)


def _patch(op: str, path: str, function: types.FunctionType) -> CodePatch:
    def stand_in(original: Any) -> types.CodeType:
        called[path] = function_as_one_operation(op, path, original)
        return forwarding(function, "__import__('sys').modules[MODULE].called[PATH]", {"MODULE": __name__, "PATH": path})

    return CodePatch(function, stand_in)
