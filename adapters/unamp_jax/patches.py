"""The patches of JAX, and of libraries on it, where they must know about regions.

`acquire` applies them with the first open region of the process, `release` undoes them with the
last. A replacement asks first whether a policy is in force in the calling thread, so that other
threads see the original. The names are private to JAX, the same in 0.8 to 0.10; `probe` checks them
before the first region.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import jax
from jax._src import core, custom_derivatives

from unamp._function_types import Function
from unamp.adapter.keras_models import facts as keras_facts
from unamp.adapter.observing import follow_calls
from unamp.adapter.patching import Patch, Patches, find, missing
from unamp.adapter.replacing import AttributePatch, CodePatch, PatchGroup
from unamp.adapter.state import runs_without_policy
from unamp.errors import FrameworkNotSupported
from unamp_jax import (
    calls,
    control_flow,
    custom_rules,
    equal_dtypes,
    keras_policies,
    programs,
    rounding_rules,
    training,
)
from unamp_jax.composites import code_patch, drawing, in_float32
from unamp_jax.facts import facts
from unamp_jax.finding import hook, innermost, patches_of, with_rules
from unamp_jax.networks import is_layer
from unamp_jax.spellings import (
    DYNAMIC_SCALE,
    JET,
    OPTIMIZE,
    PALLAS,
    ROTATIONS,
    SOLVERS,
    SPARSE,
    STATS,
    libraries,
)
from unamp_jax.state import thread

# --- applying them --------------------------------------------------------------------------------


def acquire() -> None:
    """Count a region that opens in some thread; apply the patches that are not applied yet."""
    known = libraries()
    installed.acquire(known, lambda: map(_of_library, known))


def _forget() -> None:
    thread.plan, thread.sink, thread.made_under = None, None, None


# --- the functions that are patched ---------------------------------------------------------------

#: Functions of Python code: the module, the path inside it, and the maker of the replacement.
_HOOKS: tuple[tuple[str, str, Callable[[Function], Function]], ...] = (
    # Loops and branches: each value that they carry keeps its dtype.
    ("jax.lax", "scan", control_flow.scan),
    ("jax.lax", "while_loop", control_flow.while_loop),
    ("jax.lax", "cond", control_flow.cond),
    ("jax.lax", "switch", control_flow.switch),
    ("jax.lax", "custom_linear_solve", control_flow.custom_linear_solve),
    ("jax.lax", "custom_root", control_flow.custom_root),
    # Where JAX wants two dtypes to be one.
    ("jax.lax", "reduce", equal_dtypes.reduction),
    ("jax.lax", "reduce_window", equal_dtypes.reduction),
    ("jax", "pure_callback", equal_dtypes.called_back),
    ("jax.experimental", "io_callback", equal_dtypes.called_back),
    ("jax", "linear_transpose", equal_dtypes.linear_transpose),
    ("jax", "jvp", equal_dtypes.pushforward),
    ("jax._src.ops.scatter", "_scatter_update", equal_dtypes.scatter_update),
    ("jax._src.numpy.array_methods", "_IndexUpdateRef.divide", equal_dtypes.whole_update),
    ("jax._src.numpy.array_methods", "_IndexUpdateRef.power", equal_dtypes.whole_update),
    ("jax._src.flatten_util", "_unravel_list", equal_dtypes.unraveled),
    # The vector has the dtype of the parameters, and so have the parameters that come back.
    ("jax.flatten_util", "ravel_pytree", runs_without_policy(thread)),
    # A backward pass runs in the dtypes of its forward.
    ("jax._src.interpreters.ad", "backward_pass3", runs_without_policy(thread)),
    ("jax._src.interpreters.ad", "backward_pass", runs_without_policy(thread)),
    # Programs that are traced already stay as they are: the function that `jax.linearize` returns,
    # lowering rules that trace Python code.
    ("jax._src.core", "eval_jaxpr", runs_without_policy(thread)),
    ("jax._src.interpreters.mlir", "lower_jaxpr_to_module", runs_without_policy(thread)),
)

#: The same for functions that not all versions have.
_OPTIONAL: tuple[tuple[str, str, Callable[[Function], Function]], ...] = (
    ("jax._src.api", "_lift_linearized", equal_dtypes.linearized),
    ("jax._src.api", "VJP.__call__", equal_dtypes.pullback),
    ("jax._src.api", "_vjp_pullback_wrapper", equal_dtypes.older_pullback),
    (
        "jax._src.lax.control_flow.conditionals",
        "_switch_internal",
        control_flow.switch_of_platforms,
    ),
    ("jax._src.lax.lax", "_reduction_jaxpr", equal_dtypes.combination),
    ("jax._src.lax.lax", "_variadic_reduction_jaxpr", equal_dtypes.combination),
    # A program with references becomes one without: stores are updates of arrays then.
    ("jax._src.state.discharge", "discharge_state", runs_without_policy(thread)),
)

#: The same in modules that may be imported later, or never, by library. (A kernel of Pallas has the
#: dtypes of its references.)
_LATER: Mapping[str, tuple[tuple[str, str, Callable[[Function], Function]], ...]] = {
    PALLAS: ((PALLAS, "_trace_kernel_to_jaxpr", runs_without_policy(thread)),),
    # What `sparsify` traced under a policy is carried out as it is.
    SPARSE: ((SPARSE, "eval_sparse", runs_without_policy(thread)),),
    DYNAMIC_SCALE: ((DYNAMIC_SCALE, "DynamicScale.value_and_grad", training.scaling),),
    OPTIMIZE: ((OPTIMIZE, "minimize", training.minimizing),),
    SOLVERS: tuple(
        (SOLVERS, name, training.solving_a_system) for name in ("cg", "gmres", "bicgstab")
    ),
    "flax.nnx": tuple(
        ("flax.nnx.training.metrics", path, training.accumulating)
        for path in ("Average.update", "Average.compute", "Welford.update", "Welford.compute")
    ),
    "flax.linen": (("flax.core.scope", "Scope.put_variable", equal_dtypes.variable_put),),
    "haiku": (("haiku", "set_state", equal_dtypes.haiku_state_set),),
    "equinox": (
        ("equinox.internal._loop.loop", "while_loop", control_flow.while_loop),
        ("equinox.internal._loop.loop", "scan", control_flow.scan),
        ("equinox.internal._loop.bounded", "bounded_while_loop", control_flow.while_loop),
        ("equinox.internal._loop.checkpointed", "checkpointed_while_loop", control_flow.while_loop),
        ("equinox.internal._noinline", "_NoInlineWrapper.__call__", programs.inlined),
        ("equinox._ad", "filter_closure_convert", training.converting),
        ("equinox._ad", "_ClosureConvert.__call__", equal_dtypes.converted_closure),
        ("equinox.nn._stateful", "State.set", equal_dtypes.state_set),
    ),
    "lineax": tuple(
        ("lineax", f"{kind}LinearOperator.__init__", equal_dtypes.solving(1))
        for kind in ("Function", "Jacobian")
    ),
    "optimistix": tuple(
        ("optimistix", name, equal_dtypes.solving(0))
        for name in ("fixed_point", "least_squares", "minimise", "root_find")
    ),
}


@contextmanager
def patched() -> Iterator[None]:
    """Apply the patches while the context is open."""
    acquire()
    try:
        yield
    finally:
        release()


@cache
def _hooks() -> PatchGroup:
    return PatchGroup(
        [
            AttributePatch(core.Primitive, "bind_with_trace", calls.binding),
            AttributePatch(
                custom_derivatives.custom_jvp,
                "__call__",
                custom_rules.jvp_call(with_rules, patched),
            ),
            AttributePatch(
                custom_derivatives.custom_vjp,
                "__call__",
                custom_rules.vjp_call(with_rules, patched),
            ),
            *_changes(_HOOKS),
            *_changes(_OPTIONAL),
        ]
    )


installed = Patches(lambda: (_hooks(),), _forget)
release = installed.release


@cache
def _of_library(library: str) -> PatchGroup:
    later = _changes(_LATER.get(library, ()), library)
    if library == PALLAS:
        return PatchGroup(later)
    if library in (JET, SPARSE):
        rounding_rules.teach(library)
        return PatchGroup(later)
    if library in (STATS, ROTATIONS):
        return PatchGroup(code_patch(function, in_float32) for function in _wide(library))
    functions = patches_of(library)
    draws = _drawn() if library == "jax" else ()
    return PatchGroup(
        [*_suspended(library, functions), *draws, *training.patches(library), *later, *functions]
    )


def _changes(
    hooks: Iterable[tuple[str, str, Callable[[Function], Function]]], library: str = "jax"
) -> Iterator[Patch]:
    for module, path, replacement in hooks:
        found = hook("jax" if library in (PALLAS, SPARSE) else library, module, path)
        # equinox keeps its methods in objects of its own
        function = innermost(getattr(found, "method", found))
        if isinstance(function, types.FunctionType):
            yield code_patch(function, replacement)


def _suspended(library: str, others: Iterable[Patch]) -> Iterator[Patch]:
    taken = {patch.function for patch in others if isinstance(patch, CodePatch)}
    for found in (facts().suspended, keras_facts().suspended):
        for module, paths in found.items():
            for path in paths if _home(module) == library else ():
                function = innermost(hook(library, module, path))
                if isinstance(function, types.FunctionType) and function not in taken:
                    taken.add(function)
                    yield code_patch(function, runs_without_policy(thread))


def _home(module: str) -> str:
    """Return the library that a module is a part of; flax's own core is linen's."""
    if module.startswith("flax.") and not module.startswith("flax.nnx"):
        return "flax.linen"
    return next(
        (
            name
            for name in ("flax.nnx", "optax", "equinox", "haiku", "keras", "numpyro")
            if module.startswith(name)
        ),
        "jax",
    )


def _drawn() -> Iterator[Patch]:
    """Yield the patches of random draws that are no operations of the vocabulary.

    The patches of operations widen parameters as well.
    """
    taken = {patch.function for patch in patches_of("jax") if isinstance(patch, CodePatch)}
    for name, parameters in facts().drawn.items():
        function = innermost(find("jax.random", name))
        if isinstance(function, types.FunctionType) and function not in taken:
            taken.add(function)
            yield code_patch(function, drawing(function, parameters))


def _wide(library: str) -> Iterator[types.FunctionType]:
    """Yield the functions that compute probabilities or rotations, each once.

    They are those of modules in `jax.scipy.stats`, and the methods of classes in both libraries.
    Dirichlet's are left out: low fractions do not add up to 1 in float32, and would count as
    impossible.
    """
    found = [
        innermost(each)
        for name, home in vars(sys.modules[library]).items()
        if (inspect.ismodule(home) and name != "dirichlet") or inspect.isclass(home)
        for own, each in vars(home).items()
        # not what puts an object of arrays together, in loops for example: they keep their dtypes
        if inspect.ismodule(home) or own in _CALLED or not own.startswith(("_", "tree_"))
    ]
    yield from dict.fromkeys(each for each in found if isinstance(each, types.FunctionType))


#: The methods without a public name that compute.
_CALLED = ("__init__", "__call__", "__mul__")


@cache
def layer_patches(known: tuple[str, ...]) -> Patches | None:
    """Return the patches that report to an observer which layer is called.

    None where no library of layers is imported.
    """
    homes = [
        find("flax.nnx", "Module"), find("flax.linen", "Module"), find("equinox", "Module"),
        find("keras.src.layers.layer", "Layer") if "keras" in known else None,
    ]  # fmt: skip
    if not any(homes):
        return None
    of_keras = keras_policies.tracing_patches(follow_calls(thread)) if "keras" in known else ()
    return training.layer_calls(lambda: homes, follow_calls(thread), is_layer, of_keras)


# --- probing --------------------------------------------------------------------------------------


def probe() -> None:
    """Check that JAX has every function and attribute that is patched.

    Raises:
        FrameworkNotSupported: naming the version of JAX and what is missing.
    """
    for module, path, _ in _HOOKS:
        if not isinstance(innermost(find(module, path, importing=True)), types.FunctionType):
            raise _missing(f"function {module}.{path}")
    names = tuple(inspect.signature(core.Primitive.bind_with_trace).parameters)
    if names not in {
        ("self", "trace", "args", "params"),
        ("self", "trace", "args", "avals", "params"),
    }:
        raise _missing(
            "method Primitive.bind_with_trace of the arguments that are known; "
            f"it has {', '.join(names)}"
        )
    for kind, fields in (
        (custom_derivatives.custom_jvp, ("jvp",)),
        (custom_derivatives.custom_vjp, ("fwd", "bwd")),
    ):
        made = kind(lambda x: x)
        for field in (*fields, "fun", "nondiff_argnums"):
            if not hasattr(made, field):
                raise _missing(f"attribute {kind.__name__}.{field}")


def _missing(what: str) -> FrameworkNotSupported:
    return missing("jax", jax.__version__, what)
