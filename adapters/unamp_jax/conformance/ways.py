"""The ways in which JAX runs a function; `unamp.adapter.ways` explains them.

A function's inputs are arrays, and running statistics, which are no pytrees: it closes over
the statistics.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import jax
import jax.numpy as jnp
from jax import export, lax
from jax.sharding import Mesh, PartitionSpec

from unamp._function_types import Function
from unamp.adapter import Way
from unamp.adapter.plain_ways import Runs, both, coroutine, decorated, generator, in_a_thread
from unamp_jax.conformance.layers import Statistic


def _apart(function: Function, inputs: Sequence[Any]) -> tuple[Function, list[Any]]:
    """Return a function of arrays alone, and the arrays."""
    places = [place for place, value in enumerate(inputs) if not isinstance(value, Statistic)]

    def of_arrays(*arrays: Any) -> Any:
        given = [
            Statistic(value.value) if isinstance(value, Statistic) else value for value in inputs
        ]
        for place, array in zip(places, arrays, strict=True):
            given[place] = array
        return function(*given)

    return of_arrays, [inputs[place] for place in places]


def _both(name: str, kind: str, runs: Runs, *, dear: bool = True, **promised: Any) -> Iterator[Way]:
    """Return two ways: the region inside the function, and around the whole.

    Args:
        name: the common part of their names.
        kind: their kind.
        runs: runs a function on arrays.
        dear: whether they take long, as do all whose programs XLA compiles whole.
        **promised: the other fields of the ways.
    """
    return both(
        name, kind, lambda function, inputs: runs(*_apart(function, inputs)), dear=dear, **promised
    )


def _jit(function: Function, arrays: Sequence[Any]) -> Any:
    return jax.jit(function)(*arrays)


def _ahead(function: Function, arrays: Sequence[Any]) -> Any:
    return jax.jit(function).lower(*arrays).compile()(*arrays)


def _device(array: Any) -> Any:
    return next(iter(array.devices()))


def export_platform(array: Any) -> str:
    """Return the platform that an array is on, as exporting names it.

    Without a platform, JAX would export for its default device's.
    """
    return "cpu" if _device(array).platform == "cpu" else export.default_export_platform()


def _exported(function: Function, arrays: Sequence[Any]) -> Any:
    saved = export.export(jax.jit(function), platforms=[export_platform(arrays[0])])(
        *arrays
    ).serialize()
    return export.deserialize(saved).call(*arrays)


#: JAX writes an exported program with a package that it does not install.
NO_FLATBUFFERS = "" if find_spec("flatbuffers") else "not installed: flatbuffers"


def _checkpoint(function: Function, arrays: Sequence[Any]) -> Any:
    return jax.checkpoint(function)(*arrays)


def _scan(function: Function, arrays: Sequence[Any]) -> Any:
    return lax.scan(lambda carry, _: (carry, function(*arrays)), jnp.float32(0.0), None, length=1)[
        1
    ][0]


def _cond(function: Function, arrays: Sequence[Any]) -> Any:
    return lax.cond(arrays[0].size > 0, function, function, *arrays)


def _vmap(function: Function, arrays: Sequence[Any]) -> Any:
    return jax.vmap(function, in_axes=None, axis_size=1)(*arrays)[0]


def _shard_map(function: Function, arrays: Sequence[Any]) -> Any:
    mesh = Mesh([_device(arrays[0])], ("replica",))
    spread = jax.shard_map(function, mesh=mesh, in_specs=PartitionSpec(), out_specs=PartitionSpec())
    return jax.jit(spread)(*arrays)


def ways() -> tuple[Way, ...]:
    """Return the ways of JAX."""
    return (
        Way("decorated function", "decorated", decorated),
        Way("decorated generator", "decorated", generator, dear=True),
        Way("decorated coroutine", "decorated", coroutine, dear=True),
        Way("in a thread", "eager", in_a_thread, gradients=False),
        *_both("jit", "compiled", _jit, dear=False, equal="bound"),
        *_both("lower and compile", "compiled", _ahead, equal="bound", gradients=False),
        *_both(
            "export and load",
            "exported",
            _exported,
            equal="bound",
            gradients=False,
            absent=NO_FLATBUFFERS,
        ),
        *_both("checkpoint", "recomputed", _checkpoint, equal="bound"),
        *_both("scan", "control flow", _scan, equal="bound"),
        *_both("cond", "control flow", _cond, equal="bound", gradients=False),
        *_both("vmap", "transformed", _vmap, equal="bound"),
        *_both("shard_map", "replicated", _shard_map, equal="bound", gradients=False),
    )
