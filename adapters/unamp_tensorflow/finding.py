"""Find the composite operations of the vocabulary in this TensorFlow and Keras."""

from __future__ import annotations

import types
from collections.abc import Iterator
from functools import cache

from unamp._function_types import Function
from unamp.vocabulary import vocabulary
from unamp_tensorflow.composites import Composite
from unamp_tensorflow.facts import facts
from unamp_tensorflow.spellings import keras_in_use, named


def functions() -> tuple[Composite, ...]:
    """Return the functions of TensorFlow."""
    return _functions(False)


def keras() -> tuple[Composite, ...]:
    """Return the functions of Keras, once it is imported."""
    return (*_functions(True), *_layers()) if keras_in_use() else ()


@cache
def _functions(of_keras: bool) -> tuple[Composite, ...]:
    taken: set[Function] = set()
    made = []
    for op, path in _spelled():
        if path.startswith("keras.") is not of_keras or path in facts().thin:
            continue
        function = named(path)
        if path in facts().decorated:
            function = getattr(function, "__wrapped__", function)
        if not isinstance(function, types.FunctionType) or function in taken:
            continue
        if function.__module__.rpartition(".")[2].startswith("gen_"):
            # TensorFlow generates these for operation types.
            continue
        taken.add(function)
        made.append(Composite.of_function(op, path, function))
    return tuple(made)


def _spelled() -> Iterator[tuple[str, str]]:
    for op in vocabulary().values():
        for path in op.spellings.get("tensorflow", ()) if op.name != "control_flow" else ():
            # Casts are single operation types, except `saturate_cast`, which clips to the other
            # dtype's range first.
            if op.group != "cast" or path.endswith("saturate_cast"):
                yield op.name, path


@cache
def _layers() -> tuple[Composite, ...]:
    """Return the methods `call` of Keras's layers; several classes may share one."""
    classes = {
        found: op
        for op, path in _spelled()
        if path.startswith("keras.layers.") and isinstance(found := named(path), type)
    }
    made: dict[object, Composite] = {}
    for layer, op in classes.items():
        home = next((of for of in layer.__mro__ if "call" in vars(of)), None)
        if (
            home is None
            or home.__module__ == "keras.src.layers.layer"
            or vars(home)["call"] in made
        ):
            continue
        made[vars(home)["call"]] = Composite.of_layers(op, home, classes)
    return tuple(made.values())
