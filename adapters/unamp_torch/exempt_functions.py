"""Functions of PyTorch's that compute what a program keeps: they run with no policy in force.

Scaled losses, learning rates, clipped gradients, averages of parameters, initial values, parameters
that others become (pruned, fused with a norm, without their parametrization, stacked), the vectors
of spectral norms, statistics that processes gather or observers keep, windows, batches, Jacobians,
distributions: none of them is the result of an operation of the vocabulary, so that a policy would
silently round the numbers that they are computed from. Where it would, the functions are replaced
while a region is open (`unamp_torch.python_functions`).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributions, nn
from torch.amp import GradScaler
from torch.ao.quantization.observer import ObserverBase
from torch.nn.modules import batchnorm
from torch.nn.utils import fusion, parametrizations, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.swa_utils import AveragedModel
from torch.quasirandom import SobolEngine
from torch.signal import windows
from torch.utils.data import default_collate

from unamp._compiler_marks import once_per_trace
from unamp._function_types import Function
from unamp.adapter.plans import DRAWING
from unamp.adapter.spellings import at_path
from unamp.adapter.wrapping import own_methods, with_derived
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import preset
from unamp_torch.backward import in_this_region, without_policy
from unamp_torch.casting import cast, cast_floats
from unamp_torch.compiling import run_uncompiled
from unamp_torch.state import thread
from unamp_torch.stepping import Step


class Group:
    """Functions that are replaced and put back in one go: two hundred cost as much as twenty.

    An object without code, which somebody has put in a function's place, is left out.

    Attributes:
        functions: the functions.
    """

    __slots__ = ("functions",)

    def __init__(self, functions: Iterable[Function]) -> None:
        found = map(inspect.unwrap, functions)
        self.functions = tuple(each for each in found if isinstance(each, FunctionType))


class _Kind(NamedTuple):
    """Functions of one kind.

    Attributes:
        functions: the functions, as PyTorch has them.
        parts: the operations that they compute with: where a policy makes one of them low, the
            functions are replaced.
    """

    functions: Iterable[Function]
    parts: Iterable[str]


_SCALING, _SCHEDULING, _CLIPPING, _AVERAGING, _MAKING = (
    "scaling",
    "scheduling",
    "clipping",
    "averaging",
    "making",
)
_FILLING = "filling"
_DRAWING = "drawing"
_DIFFERENTIATING = "differentiating"
_NORMALIZING = "normalizing"


def _of_distributions() -> Iterator[FunctionType]:
    """Yield the methods with which PyTorch's own distributions and transforms compute.

    Classes that call others are left out: a program's own distribution or transform, which they
    call, may be a network, which follows the policy.
    """
    computing = ("__init__", "rsample", "sample", "log_prob", "cdf", "icdf", "entropy")
    yield from own_methods(distributions.Distribution, computing, _CALLING_OTHERS)
    transforming = ("_call", "_inverse", "log_abs_det_jacobian")
    yield from own_methods(distributions.Transform, transforming, _CALLING_OTHERS)
    yield vars(distributions.Distribution)["__init__"]
    yield vars(distributions.Distribution)["_validate_sample"]
    yield vars(distributions)["kl_divergence"]
    yield vars(distributions.utils.lazy_property)["__get__"]


#: PyTorch's distributions and transforms that call others.
_CALLING_OTHERS = frozenset(
    (
        "CatTransform",
        "ComposeTransform",
        "Distribution",
        "IndependentTransform",
        "StackTransform",
        "Transform",
        "TransformedDistribution",
        "_InverseTransform",
    )
)

#: The exempt functions, by a word for what they do. `_LATER` and `_METHODS` add more.
_KINDS = {
    # A scaled float16 loss would overflow, and fused optimizers refuse a low `found_inf`.
    _SCALING: _Kind((), ("add", "mul")),
    # A learning rate that is a tensor is computed from its last value: in a low dtype, a small
    # change would be lost.
    _SCHEDULING: _Kind((), ("add", "div", "mul", "pow", "sub")),
    # The norm of all gradients would overflow, and clipped by it they would all be zero.
    _CLIPPING: _Kind(
        (nn.utils.get_total_norm, nn.utils.clip_grads_with_norm_),
        ("add", "linalg_vector_norm", "max", "maximum", "mul", "pow", "reciprocal", "stack"),
    ),
    # An observer's scale is made of averages of least and largest numbers.
    _AVERAGING: _Kind(
        (
            AveragedModel.update_parameters,
            *own_methods(ObserverBase, ("forward", "calculate_qparams")),
        ),
        ("add", "cat", "div", "mul", "reciprocal", "sub"),
    ),
    # Initial values that are computed, and parameters and buffers that are made of parameters.
    _MAKING: _Kind(
        (
            nn.init.orthogonal_,
            nn.init.trunc_normal_,
            nn.utils.spectral_norm,
            nn.utils.weight_norm,
            parametrizations.spectral_norm,
            parametrize.register_parametrization,
            parametrize.remove_parametrizations,
            parametrize.ParametrizationList.right_inverse,
            SpectralNorm.remove,
            WeightNorm.remove,
            fusion.fuse_conv_bn_weights,
            fusion.fuse_linear_bn_weights,
            nn.utils.parameters_to_vector,
            torch.func.stack_module_state,
            # Gradients of float32 numbers, chunk by chunk.
            torch._functorch.vmap._concat_chunked_outputs,
            # A window is told its dtype, and a Sobol sequence is as fine as its numbers.
            *(vars(windows)[name] for name in windows.__all__),
            SobolEngine.draw,
            # Batches are float32 where worker processes make them, too: targets are among them.
            default_collate,
        ),
        (
            "add",
            "cat",
            "diag",
            "div",
            "linalg_qr",
            "mul",
            "rsqrt",
            "sign",
            "stack",
            "sub",
            "topk",
            "weight_norm",
            "where",
        ),
    ),
    # Parameters become pieces of a vector that the program computes, and would keep its dtype.
    _FILLING: _Kind((nn.utils.vector_to_parameters,), ("add", "cat", "div", "lerp", "mul", "sub")),
    # Gradients of float32 numbers are put together.
    _DIFFERENTIATING: _Kind((torch.autograd.functional.jacobian,), ("stack",)),
    # The number of values that statistics are taken of would be infinite in float16.
    _NORMALIZING: _Kind(
        (vars(batchnorm)["sync_batch_norm"].forward,), ("batch_norm", "cat", "stack")
    ),
    # Tails: a uniform number next to 1 is 1 when it is low, and its logarithm infinite.
    _DRAWING: _Kind(_of_distributions(), DRAWING),
    # The least norm, 1e-12, is 0 in float16: a vector of zeros would become one of NaN,
    # and stay so.
    "iterating": _Kind(
        (SpectralNorm.compute_weight, parametrizations._SpectralNorm._power_method),
        ("clamp", "div"),
    ),
}

_GROUPS = {word: Group(kind.functions) for word, kind in _KINDS.items()}

#: Methods of a class and of those derived from it, by the word for their kind.
_METHODS: Mapping[str, tuple[type, tuple[str, ...]]] = {
    _SCALING: (GradScaler, ("scale", "unscale_", "step", "update")),
    _SCHEDULING: (LRScheduler, ("step",)),
}

#: Functions of modules that few programs import: the module, the function's path in it, and the
#: word for its kind.
_LATER = (
    ("torch.distributed.algorithms.model_averaging.utils", "average_parameters", _AVERAGING),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel.__init__",
        _MAKING,
    ),
    (
        "torch.distributed.fsdp.fully_sharded_data_parallel",
        "FullyShardedDataParallel.clip_grad_norm_",
        _CLIPPING,
    ),
    ("torch.nn.utils.prune", "BasePruningMethod.apply.__func__", _MAKING),
    ("torch.nn.utils.prune", "BasePruningMethod.remove", _MAKING),
    ("torch.nn.utils.prune", "global_unstructured", _MAKING),
)


def functions(policy: Policy) -> tuple[tuple[str, FunctionType | Group], ...]:
    """Return the functions that a policy must not reach, each with the word for its kind."""
    kinds = _reached(policy)
    known = ((word, group) for word, group in _GROUPS.items() if word in kinds)
    methods = (pair for word in _METHODS if word in kinds for pair in _of_classes(word))
    return (*known, *methods, *_imported_later(kinds))


def reaches(policy: Policy) -> bool:
    """Return whether there are any functions that a policy must not reach."""
    return bool(_reached(policy))


@functools.lru_cache(KEPT_POLICIES)
def _reached(policy: Policy) -> frozenset[str]:
    """Return the kinds of functions that a policy would make compute low."""
    if not policy.active or preset(policy.preset).delegates:
        return frozenset()
    low = {op for op, rule in policy.rules.items() if rule in (Rule.LOW, Rule.NARROWEST)}
    return frozenset(word for word, kind in _KINDS.items() if not low.isdisjoint(kind.parts))


def _imported_later(kinds: frozenset[str]) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions of some kinds in those modules of `_LATER` that are imported by now."""
    for module, path, word in _LATER:
        if word in kinds and module in sys.modules:
            function = inspect.unwrap(at_path(sys.modules[module], path))
            if isinstance(function, FunctionType):
                yield word, function


def _of_classes(word: str) -> Iterator[tuple[str, FunctionType]]:
    """Yield the methods of a class and of those derived from it.

    Derived classes may come with an import: FSDP's scaler is one.
    """
    base, names = _METHODS[word]
    for kind in with_derived(base):
        for name in names:
            method = kind.__dict__.get(name)
            if type(method) is FunctionType:  # not one that is inherited, or wrapped
                yield word, method


def _scaling(original: Function) -> Function:
    """Return the replacement of a scaler's method: only closures run under the policy."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        if thread.plan is None or thread.plan.delegated:
            return original(*args, **kwargs)
        with Step(nullcontext()) as step:
            args, kwargs = step.handed(args, kwargs)
            return original(*args, **kwargs)

    # dynamo skips the scaler's own methods, and would compile their replacements
    run_uncompiled(replacement)
    return replacement


def _replacement(original: Function) -> Function:
    """Return the replacement of any other function: no policy is in force, also in a graph."""

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        # Dynamo must not trace into the thread's plan: its graph takes any policy out of force.
        if torch.compiler.is_compiling() or not (thread.plan is None or thread.plan.delegated):
            with without_policy():
                return original(*args, **kwargs)
        return original(*args, **kwargs)

    return replacement


def _filling(original: Function) -> Function:
    """Return the replacement of `vector_to_parameters`.

    In a region it first casts the vector to the dtype of the parameters.
    """

    @functools.wraps(original)
    def replacement(vec: Tensor, parameters: Iterable[Tensor]) -> object:
        if thread.plan is None or thread.plan.delegated:
            return original(vec, parameters)
        kept = list(parameters)
        dtypes = {parameter.dtype for parameter in kept}
        with without_policy():
            return original(vec.to(dtypes.pop()) if len(dtypes) == 1 else vec, kept)

    return replacement


def _differentiating(original: Function) -> Function:
    """Return the replacement of a function that takes gradients of another.

    Only that other function runs under the policy.
    """

    @functools.wraps(original)
    def replacement(func: Function, *args: Any, **kwargs: Any) -> object:
        if thread.plan is None or thread.plan.delegated:
            return original(func, *args, **kwargs)
        func = in_this_region(func)
        with without_policy():
            return original(func, *args, **kwargs)

    run_uncompiled(replacement)  # no graph can hold the call, and dynamo would look inside
    return replacement


def _normalizing(original: Function) -> Function:
    """Return the replacement of the forward pass of `SyncBatchNorm`.

    Its operators have no rule, so its input is cast here, as the rule for `batch_norm` says.
    """
    exempt = _replacement(original)

    @functools.wraps(original)
    def replacement(ctx: Any, input: Tensor, *args: Any) -> object:
        return exempt(ctx, cast(input, _normalized_in(input.device.type) or input.dtype), *args)

    return replacement


@once_per_trace
def _normalized_in(device: str) -> torch.dtype | None:
    """Return the dtype of the rule for `batch_norm` on a device; None where it casts nothing."""
    plan = thread.plan
    policy = None if plan is None or plan.delegated else plan.policy_on(device)
    if plan is None or policy is None:
        return None
    dtypes = {Rule.LOW: plan.low_on(device), Rule.FP32: torch.float32}
    return dtypes.get(policy.rules["batch_norm"])


def _drawing(original: Function) -> Function:
    """Return the replacement of a function of distributions: low tensors are float32 first.

    Each call asks for the policy, as a region whose policy does not reach distributions may be open
    inside another, or in another thread.
    """

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> object:
        if not _draws_in_float32():
            return original(*args, **kwargs)
        with without_policy():
            args = tuple(cast_floats(arg, torch.float32) for arg in args)
            kwargs = {name: cast_floats(arg, torch.float32) for name, arg in kwargs.items()}
            return original(*args, **kwargs)

    return replacement


@once_per_trace
def _draws_in_float32() -> bool:
    """Return whether the policy in force here must not reach distributions."""
    return thread.plan is not None and _DRAWING in _reached(thread.plan.policy)


#: The functions that make the replacement, for each kind.
REPLACING = dict.fromkeys(_KINDS, _replacement) | {
    _SCALING: _scaling,
    _FILLING: _filling,
    _DIFFERENTIATING: _differentiating,
    _NORMALIZING: _normalizing,
    _DRAWING: _drawing,
}
