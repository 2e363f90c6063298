"""JAX's own objects, and those of the libraries on it, by their spellings.

A spelling without a dot is a primitive's name. One that begins with the name of a library
(``flax.nnx.Linear``, ``optax.huber_loss``) is that library's; any other is relative to the package
`jax`. A library that is not imported has no objects.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

import jax

from unamp.adapter.keras_models import keras_on
from unamp.adapter.patching import find
from unamp.adapter.spellings import ObjectNames, at_path
from unamp.vocabulary import vocabulary

#: A layer, a variable or an optimizer of Keras's, whose classes nothing here imports.
KerasObject = Any

#: Modules of JAX's own, and one of flax's, that are imported late: they count as libraries.
PALLAS = "jax._src.pallas.pallas_call"
SPARSE = "jax.experimental.sparse.transform"
JET = "jax.experimental.jet"
DYNAMIC_SCALE = "flax.training.dynamic_scale"
STATS = "jax.scipy.stats"
OPTIMIZE = "jax.scipy.optimize"
SOLVERS = "jax.scipy.sparse.linalg"
ROTATIONS = "jax.scipy.spatial.transform"

#: The libraries, by the names of their modules.
_LIBRARIES = (
    PALLAS,
    SPARSE,
    JET,
    DYNAMIC_SCALE,
    STATS,
    OPTIMIZE,
    SOLVERS,
    ROTATIONS,
    "flax.linen",
    "flax.nnx",
    "optax",
    "equinox",
    "haiku",
    "keras",
    "numpyro",
    "lineax",
    "optimistix",
)


def keras_in_use() -> bool:
    """Return whether Keras is imported, and computes with JAX."""
    return keras_on("jax")


def libraries() -> tuple[str, ...]:
    """Return ``"jax"``, and the libraries on it that are imported."""
    return (
        "jax",
        *(
            name
            for name in _LIBRARIES
            if name in sys.modules and (name != "keras" or keras_in_use())
        ),
    )


def is_of(value: object, library: str, name: str) -> bool:
    """Return whether a value is an object of a class of a library's, which need not be imported."""
    kind = find(library, name)
    return kind is not None and isinstance(value, kind)


def library_of(path: str) -> str:
    """Return the library that a spelling belongs to."""
    return next((name for name in _LIBRARIES if path.startswith(f"{name}.")), "jax")


def named(path: str) -> Any:
    """Return the object of a spelling; None if it does not exist or its library is not imported."""
    library = library_of(path)
    if library == "jax":
        return at_path(jax, path) if "." in path else None
    return (
        at_path(sys.modules[library], path.removeprefix(f"{library}."))
        if library in libraries()
        else None
    )


@cache
def spelled() -> tuple[tuple[str, str], ...]:
    """Return every operation with each of its spellings, and those of Keras on any backend."""
    found = []
    for op in vocabulary().values():
        if op.group == "cast" or op.name == "control_flow":
            continue
        found += [(op.name, path) for path in op.spellings.get("jax", ())]
        found += [
            (op.name, path) for path in op.spellings.get("tensorflow", ()) if _is_of_keras(path)
        ]
    return tuple(found)


def _is_of_keras(path: str) -> bool:
    """Return whether a spelling of TensorFlow's is of Keras on any backend.

    These are layers, functions that losses call, and functions that move pixels.
    """
    return path.startswith(("keras.layers.", "keras.ops.image.")) or (
        path.startswith("keras.losses.") and path.islower()
    )


@cache
def primitives() -> Mapping[str, str]:
    """Return the operations of primitives, by the primitives' names."""
    return {path: op for path, op in vocabulary().spelled("jax").items() if "." not in path}


def spelling(value: object) -> str | None:
    """Return the name of a function or layer class, with the framework in front; else None."""
    return _names(libraries()).spelling(value)


@cache
def _names(known: tuple[str, ...]) -> ObjectNames:
    return ObjectNames("jax", lambda path: (named(path),))
