"""The suite's calls of JAX's functions, made so that XLA compiles as little as possible.

Compiling is most of a run's time. Under a policy a function runs primitive by primitive, and each
is compiled once for its dtypes and shapes: JAX would compile jitted functions anew for each policy.
With no policy, where the suite computes its predictions, a function is one program. It is also one
program, with its gradient, where a probe looks at the gradient: equal programs of different
policies are compiled once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import Any

import jax
import numpy as np
from jax._src import compiler, config, xla_bridge
from jax._src.interpreters import mlir
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from jaxlib.mlir import ir

from unamp.dtypes import LOW_DTYPES
from unamp_jax.state import CONTEXT, thread

#: The most programs to keep, of about 0.1 MB each. A thorough run compiles fewer.
_MANY = 12000

#: The types of arguments that are constants of a program.
_CONSTANTS = (bool, int, float, complex, str)

_NO_MESH = jax.sharding.AbstractMesh((), ())

#: Flags of XLA in jaxlib 0.8 to 0.10; where XLA does not know a flag, it ends the process. They
#: choose among XLA's code generators, when the dtypes are decided already.
_FLAGS = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"

_EXCESS = "xla_allow_excess_precision"

_IN_ONE_PROGRAM: ContextVar[bool] = ContextVar("in one program", default=False)


@contextmanager
def in_float64() -> Iterator[None]:
    """Make float64 JAX's widest dtype.

    The empty mesh is set, too: JAX sets it itself inside rules of differentiation, and would
    compile every program a second time for calls without it.
    """
    with config.enable_x64(True), jax.sharding.use_abstract_mesh(_NO_MESH):
        yield


@contextmanager
def one_program() -> Iterator[None]:
    """Call functions as they are, with loops and jitted parts, while open.

    The caller makes one program of all calls.
    """
    token = _IN_ONE_PROGRAM.set(True)
    try:
        yield
    finally:
        _IN_ONE_PROGRAM.reset(token)


class _Programs:
    """The programs that XLA has compiled, kept by their text.

    This is for a process that runs the suite and nothing else. JAX keeps programs by the function
    that they were traced from: an equal program of another function it compiles again.
    """

    def __init__(self) -> None:
        self._kept: dict[object, Any] = {}
        self._traced: dict[object, jax.stages.Compiled] = {}
        self._compile: Callable[..., Any] | None = None

    def compile_fast(self) -> None:
        """Keep programs, and tell XLA not to optimise programs that run a few times.

        XLA is told nothing where the environment has flags for it. JAX keeps no programs in files:
        their keys would take a tenth of the time. All programs are written in one context of MLIR:
        a context for each, as JAX makes, would take a quarter of the time. The location of an
        operation has no lines of Python: where programs are read, they would take a third of it.
        """
        if self._compile is not None:
            return
        self._compile, compiler.compile_or_get_cached = (
            compiler.compile_or_get_cached,
            self._compiled,
        )
        jax.config.update("jax_enable_compilation_cache", False)
        jax.config.update("jax_traceback_in_locations_limit", 0)
        if hasattr(mlir, "make_ir_context"):
            mlir.make_ir_context = cache(mlir.make_ir_context)
        if "XLA_FLAGS" in os.environ:
            return
        jax.config.update("jax_disable_most_optimizations", True)
        if not xla_bridge.backends_are_initialized() and jax.__version_info__ < (0, 11):
            os.environ["XLA_FLAGS"] = _FLAGS

    def _compiled(
        self, backend: Any, program: Any, devices: Any, options: Any, callbacks: Any, *rest: Any
    ) -> Any:
        assert self._compile is not None
        if backend.platform != "cpu":
            compute_as_written(program, options)
        if callbacks:  # the program refers to their objects
            return self._compile(backend, program, devices, options, callbacks, *rest)
        key = backend, str(program), tuple(devices.flat), options.SerializeAsString()
        if key not in self._kept:
            self._kept[key] = self._compile(backend, program, devices, options, callbacks, *rest)
        return self._kept[key]

    def of_trace(self, traced: jax.stages.Traced) -> jax.stages.Compiled:
        """Return a traced program, compiled: that of an equal trace, where there was one.

        Policies that decide alike trace equal programs, and lowering takes longer than compiling.
        """
        key = _told(traced.jaxpr), traced.in_tree, traced.out_tree
        if key not in self._traced:
            self._traced[key] = traced.lower().compile()
        return self._traced[key]

    def forget(self) -> None:
        """Drop all programs, where there are many. No call may be under way."""
        if len(self._kept) > _MANY:
            self._kept.clear()
            self._traced.clear()
            jax.clear_caches()


#: The rules for derivatives not taken: another object in each trace, and no part of a program.
_DERIVATIVES = frozenset({"jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd"})


def _told(value: Any) -> Hashable:
    """Return all that tells one trace from another: its operations, not the names of its values."""
    if isinstance(value, ClosedJaxpr):
        return _told(value.jaxpr), tuple(map(_number, value.consts))
    if isinstance(value, Jaxpr):
        places: dict[Any, int] = {}

        def told(atom: Any) -> Hashable:
            if isinstance(atom, Literal):
                return atom.aval, _number(atom.val)
            return atom.aval, places.setdefault(atom, len(places))

        return (
            *map(told, (*value.constvars, *value.invars)),
            *(
                (
                    e.primitive,
                    *(_told(item) for item in e.params.items() if item[0] not in _DERIVATIVES),
                    *map(told, (*e.invars, *e.outvars)),
                )
                for e in value.eqns
            ),
            *map(told, value.outvars),
        )
    return tuple(map(_told, value)) if isinstance(value, (list, tuple)) else value


def _number(array: Any) -> Hashable:
    if jax.dtypes.issubdtype(getattr(array, "dtype", float), jax.dtypes.prng_key):
        array = jax.random.key_data(array)
    return np.asarray(array).tobytes()


PROGRAMS = _Programs()


def rounding() -> dict[str, bool]:
    """Return the options by which a compiler leaves out no rounding to a low dtype.

    There are none where ``XLA_FLAGS`` has that option.
    """
    return {} if _EXCESS in os.environ.get("XLA_FLAGS", "") else {_EXCESS: False}


def compute_as_written(program: Any, options: Any) -> None:
    """Make an accelerator's compiler compute a program in the dtypes that it states.

    Probes tell precisions by their rounding. Where nobody states a precision, a GPU's float32
    product is TF32, whose ten bits would pass for float16. JAX's own setting cannot be used against
    that: a precision that is stated for a product is stronger than a policy. And a compiler leaves
    out a rounding to a low dtype where it may, unless ``XLA_FLAGS`` has that option.

    Args:
        program: the module, which is changed.
        options: the options for compiling it, which are changed, too.
    """
    with program.context:
        program.operation.walk(_in_all_bits)
    options.env_option_overrides = [*options.env_option_overrides, *rounding().items()]


def _in_all_bits(operation: Any) -> Any:
    attributes = operation.attributes
    # An algorithm is a stated precision; a product that has one may have no other.
    if operation.name not in _PRODUCTS or "algorithm" in attributes:
        return ir.WalkResult.ADVANCE
    if any("f32" in str(operand.type) for operand in operation.operands):
        # An exported program has no such attribute where no precision is stated.
        stated = (
            str(attributes["precision_config"]) if "precision_config" in attributes else _UNSTATED
        )
        attributes["precision_config"] = ir.Attribute.parse(stated.replace("DEFAULT", "HIGHEST"))
    return ir.WalkResult.ADVANCE


_PRODUCTS = frozenset({"stablehlo.convolution", "stablehlo.dot_general"})
_UNSTATED = "[#stablehlo<precision DEFAULT>, #stablehlo<precision DEFAULT>]"


class _NotOneProgram(Exception):
    """A function whose result is not made of arrays."""


class Calls:
    """Calls of one function.

    Args:
        function: the function, in the canonical signature.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._programs: dict[object, Callable[..., Any] | None] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function with float64 as JAX's widest dtype."""
        with in_float64():
            if _IN_ONE_PROGRAM.get():
                return self._function(*args, **kwargs)
            if CONTEXT.value is None and thread.sink is None:
                try:
                    return self._as_one_program(args, kwargs)
                except _NotOneProgram:
                    pass
            with jax.disable_jit():
                return self._function(*args, **kwargs)

    def _as_one_program(self, args: Any, kwargs: Any) -> Any:
        leaves, tree = jax.tree.flatten((args, kwargs))
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        if not arrays or any(str(array.dtype) in LOW_DTYPES for array in arrays):
            raise _NotOneProgram
        if not all(isinstance(leaf, (jax.Array, *_CONSTANTS)) for leaf in leaves):
            raise _NotOneProgram
        rest = [None if isinstance(leaf, jax.Array) else leaf for leaf in leaves]
        key = (
            tree,
            tuple(isinstance(leaf, jax.Array) or (type(leaf), repr(leaf)) for leaf in leaves),
        )
        if key not in self._programs:
            self._programs[key] = jax.jit(self._of_arrays(tree, rest))
        program = self._programs[key]
        if program is None:
            raise _NotOneProgram
        try:
            return program(*arrays)
        except Exception as error:
            # it needs numbers, or raises an error, which the call without a program shows
            self._programs[key] = None
            raise _NotOneProgram from error

    def _of_arrays(self, tree: Any, rest: list[Any]) -> Callable[..., Any]:
        def call(*arrays: Any) -> Any:
            given = iter(arrays)
            leaves = [next(given) if leaf is None else leaf for leaf in rest]
            args, kwargs = jax.tree.unflatten(tree, leaves)
            result = self._function(*args, **kwargs)
            if not all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(result)):
                raise _NotOneProgram
            return result

        return call
