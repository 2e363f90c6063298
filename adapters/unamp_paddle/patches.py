"""The patches of Paddle's code that must know about regions.

`acquire` applies them with the first open region of the process, `release` undoes them with the
last. Each replacement asks first whether the calling thread is in a region, and calls the original
where it is not: a patch is seen by all threads.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import paddle
from paddle.base import core
from paddle.base.layer_helper import LayerHelper
from paddle.static.nn.control_flow import run_with_block

from unamp._function_types import Function
from unamp.adapter.patching import Patch, Patches, find
from unamp.adapter.performing import CallPlan
from unamp.adapter.replacing import (
    AttributePatch,
    CodePatch,
    MethodsPatch,
    NamesPatch,
    PatchGroup,
    Replacement,
)
from unamp.adapter.state import Step, in_force, in_regions, runs_without_policy, stepping, suspended
from unamp.adapter.wrapping import derived_class
from unamp.policy import Rule
from unamp.presets import preset
from unamp.regions import Region, innermost_region
from unamp_paddle import bindings, compiling, distributions, native, programs
from unamp_paddle.calls import entry
from unamp_paddle.casting import cast, convert, floats, tensors
from unamp_paddle.listing import COMPARISONS, tensor_operators
from unamp_paddle.operators import indexes
from unamp_paddle.plans import Plan
from unamp_paddle.state import (
    CPU_ONLY,
    DTYPES,
    FLOAT32,
    LOW,
    NAMES,
    Tensor,
    TensorT,
    Value,
    dtype_of,
    on_gpu,
    thread,
)

if TYPE_CHECKING:
    from paddle.autograd import PyLayerContext
    from paddle.base.framework import Variable
    from paddle.base.layer_helper_base import LayerHelperBase
    from paddle.jit.dy2static.py_layer import StaticPyLayer
    from paddle.pir import Block
    from paddle.static.nn.control_flow import LoopVar

_in_regions, _without_policy = in_regions(thread), runs_without_policy(thread)

# --- functions of Paddle that must know about regions ---------------------------------------------


@contextmanager
def _assisted() -> Iterator[None]:
    """Let code run without a policy on low tensors, which the device may have no kernels for.

    Tensors that were saved in a region may be low beside float32 parameters: low ones are widened.
    """
    helping = Plan.without_policy().inside(Rule.WIDEST)
    with patched(helping), in_force(thread, helping):
        yield


@_in_regions
def _recompute(original: Function, /, function: Function, *args: Any, **kwargs: Any) -> Any:
    # For the second forward, Paddle restores its own AMP alone: the region must be opened again.
    region = innermost_region()
    if region is None:
        return original(function, *args, **kwargs)
    return original(_in_region(function, region), *args, **kwargs)


def _in_region(function: Function, region: Region) -> Function:
    forward = function.forward if isinstance(function, paddle.nn.Layer) else function

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with region:
            return function(*args, **kwargs)

    return run


@_in_regions
def _register_hook(
    original: Function, self: Tensor, hook: Callable[[Tensor], Tensor | None]
) -> object:
    # A hook on a low tensor is given a low gradient, maybe long after the region has closed.
    @functools.wraps(hook)
    def helped(grad: Tensor) -> Tensor | None:
        with _assisted():
            return hook(grad)

    return original(self, helped)


@cache
def _helped(layer: type) -> type:
    """Return a PyLayer whose backward can compute with the low gradients of a forward in a region.

    The backward returns gradients in the dtypes of the inputs, which Paddle before 3.3 needs.
    """

    def forward(ctx: PyLayerContext, *args: Any, **kwargs: Any) -> Any:
        ctx._unamp_dtypes = [dtype_of(tensor) for tensor in tensors((args, kwargs))]
        return layer.forward(ctx, *args, **kwargs)  # type: ignore[attr-defined]

    def backward(ctx: PyLayerContext, *grads: Tensor | None) -> Tensor | Sequence[Tensor | None]:
        with _assisted():
            found = layer.backward(ctx, *grads)  # type: ignore[attr-defined]
            if isinstance(found, Tensor):
                return cast(found, ctx._unamp_dtypes[0])
            return (
                tuple(map(_as, found, ctx._unamp_dtypes))
                if len(found) == len(ctx._unamp_dtypes)
                else found
            )

    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return derived_class(layer, methods)  # type: ignore[no-any-return]


def _as(gradient: TensorT | None, dtype: paddle.dtype) -> TensorT | None:
    return gradient if gradient is None else cast(gradient, dtype)


@_in_regions
def _static_apply(original: Function, /, self: StaticPyLayer, *args: Any, **kwargs: Any) -> Any:
    # In a program a PyLayer's backward becomes a part of the program. It, too, must return
    # gradients in the dtypes of the inputs.
    backward = self.backward_fn_with_ctx
    dtypes = [dtype_of(value) for value in tensors((args, kwargs))]

    def helped(*grads: Value) -> Value | Sequence[Value | None]:
        with _assisted():
            found = backward(*grads)
            several = found if isinstance(found, (tuple, list)) else (found,)
            return tuple(map(_as, several, dtypes)) if len(several) == len(dtypes) else found

    self.backward_fn_with_ctx = helped
    return original(self, *args, **kwargs)


def _apply(cls: type, *args: Any, **kwargs: Any) -> Any:
    plain = super(paddle.autograd.PyLayer, cls if thread.plan is None else _helped(cls)).apply
    return plain(*args, **kwargs)


@_in_regions
def _to_numpy(original: Function, var: Tensor | Value | Variable) -> object:
    # `paddle.Model` logs losses and returns predictions as NumPy arrays, and the array of a
    # bfloat16 tensor holds bits.
    low = isinstance(var, Tensor) and dtype_of(var) is DTYPES["bfloat16"]
    return original(cast(var.detach(), FLOAT32) if low else var)


@_in_regions
def _minimize(
    original: Function, objective_func: Callable[[Tensor], Tensor], *args: Any, **kwargs: Any
) -> object:
    # An optimizer's step, with the objective as its closure. The search compares the objective's
    # values, which must be float32.
    with Step(thread, functools.partial(suspended, thread)) as step:

        def objective(position: Tensor) -> Tensor:
            return cast(step.call_under_policy(objective_func, position), FLOAT32)

        return original(objective, *args, **kwargs)


@_in_regions
def _widening(original: Function, *args: Any, **kwargs: Any) -> object:
    # As in an optimizer's step, no rule applies inside; low tensors beside float32 are widened.
    with native.under_rule(Rule.WIDEST):
        return original(*args, **kwargs)


def _is_active(plan: CallPlan) -> bool:
    return plan.policy.active


def _decomposes_in_float32(plan: CallPlan) -> bool:
    # Low products before a decomposition give other singular values. Under Paddle's own lists it is
    # as in Paddle.
    lists = preset(plan.policy.preset)
    return plan.policy.active and not lists.delegates and lists.framework != "paddle"


@_in_regions
def _beam_search_step(
    original: Function, *args: Any, logits: Tensor | Value, **kwargs: Any
) -> object:
    # Scores are added up, and a beam that has ended scores -1e9: infinite in float16, and then NaN.
    assert thread.plan is not None
    if not _is_active(thread.plan):
        return original(*args, logits=logits, **kwargs)
    with native.under_rule(Rule.WIDEST):
        return original(*args, logits=cast(logits, FLOAT32), **kwargs)


@_in_regions
def _convert_attention_mask(
    original: Function, attn_mask: Tensor | Value | None, dtype: paddle.dtype
) -> Tensor | Value | None:
    own = dtype_of(attn_mask) if isinstance(attn_mask, (Tensor, Value)) else None
    if own is DTYPES["bfloat16"]:
        # Paddle's name for bfloat16 here is "uint16", so it would take numbers that are to be added
        # for a mask of zeros and ones.
        return cast(attn_mask, dtype)
    if own is not None and own not in NAMES and dtype == DTYPES["float16"]:
        # -1e9 is infinite in float16: a query that may look at nothing would become NaN.
        return cast(paddle.clip(original(attn_mask, FLOAT32), min=-65504.0), dtype)
    return original(attn_mask, dtype)


@_in_regions
def _create_parameter(
    original: Function,
    self: LayerHelperBase,
    attr: object,
    shape: Sequence[int],
    dtype: paddle.dtype | str | None = None,
    *args: Any,
    **kwargs: Any,
) -> object:
    # Functions of `paddle.static.nn` make parameters in the dtype of their input, which may be low.
    made = FLOAT32 if isinstance(self, LayerHelper) and dtype in LOW else dtype
    return original(self, attr, shape, made, *args, **kwargs)


@_in_regions
def _carried(original: Function, self: LoopVar, next_var: object) -> object:
    # A loop's variable keeps the dtype that it starts with, as under Paddle's own AMP.
    both = isinstance(self.curr_var, Value) and isinstance(next_var, Value)
    if both and {dtype_of(self.curr_var), dtype_of(next_var)} <= NAMES.keys():
        next_var = cast(next_var, dtype_of(self.curr_var))
    return original(self, next_var)


@_in_regions
def _promoted(
    original: Function, out_with_blocks: Sequence[tuple[object, Block]], *args: Any
) -> object:
    # The branches of a program must return one dtype: float32, where theirs differ.
    ends = [out for out, _ in out_with_blocks]
    dtypes = {dtype_of(out) for out in ends if isinstance(out, Value)}
    if len(dtypes) > 1 and dtypes <= NAMES.keys() and all(isinstance(out, Value) for out in ends):
        return [run_with_block(cast, block)(out, FLOAT32) for out, block in out_with_blocks]
    return original(out_with_blocks, *args)


@_in_regions
def _assign(original: Function, x: object, output: Tensor | Value | None = None) -> Tensor | Value:
    # Paddle gives the output the dtype of the value: a layer's buffer would be low from then on.
    if (
        output is not None
        and isinstance(x, (Tensor, Value))
        and {dtype_of(x), dtype_of(output)} <= NAMES.keys()
    ):
        x = cast(x, dtype_of(output))
    return original(x, output)


@_in_regions
def _written(original: Function, self: Tensor, value: Any, *args: Any, **kwargs: Any) -> object:
    # Paddle refuses a value in another dtype than the tensor's.
    if isinstance(value, Tensor) and {dtype_of(self), dtype_of(value)} <= NAMES.keys():
        value = cast(value, dtype_of(self))
    return original(self, value, *args, **kwargs)


@_in_regions
def _to_sparse_csr(original: Function, self: Tensor) -> object:
    # C++ that calls no forward function; for sparse tensors a CPU has only float32 kernels.
    return original(self if on_gpu((self,)) else cast(self, FLOAT32))


def _in_place(name: str) -> Replacement:
    """Return the replacement of an in-place function that refuses dtypes.

    `name` is the function that returns the same as a new tensor.
    """

    @_in_regions
    def change(original: Function, x: Tensor | Value, *args: Any, **kwargs: Any) -> Tensor | Value:
        if set(floats((x, *args, *kwargs.values()))) <= {FLOAT32}:
            return original(x, *args, **kwargs)
        result = cast(getattr(paddle, name)(x, *args, **kwargs), dtype_of(x))
        return paddle._C_ops.assign_out_(result, x) if isinstance(x, Tensor) else result

    return change


@_in_regions
def _setitem(original: Function, self: Tensor, item: object, value: object) -> object:
    # Where a tensor is written into a low one by an index, Paddle's CPU kernel writes the value's
    # gradient as float32 numbers into low memory: wrong numbers, and past the end.
    emulated = isinstance(value, Tensor) and dtype_of(self) in LOW and not value.stop_gradient
    if not emulated or not indexes((self, item)) or not (CPU_ONLY or not on_gpu((self,))):
        return original(self, item, value)
    wide = cast(self, FLOAT32)
    original(wide, item, value)
    return paddle._C_ops.assign_out_(cast(wide, dtype_of(self)), self)


@_in_regions
def _vector_to_parameters(
    original: Function, vec: Tensor, parameters: Iterable[Tensor], *args: Any, **kwargs: Any
) -> object:
    # Parameters become slices of the vector, and would have its dtype from then on.
    parameters = list(parameters)
    dtypes = {dtype_of(parameter) for parameter in parameters}
    with suspended(thread):
        return original(
            cast(vec, dtypes.pop()) if len(dtypes) == 1 else vec, parameters, *args, **kwargs
        )


@_in_regions
@contextmanager
def _averaged(original: Function, /, *args: Any, **kwargs: Any) -> Iterator[None]:
    # As in a step, no policy is in force where parameters are averaged and put back. It is in force
    # in the body of the caller's `with`.
    around, context = thread.plan, original(*args, **kwargs)
    with suspended(thread), context, in_force(thread, around):
        yield


def _readable(value: object) -> Any:
    """Return tensors that NumPy can read: low ones in float32, since bfloat16 arrives as bits."""
    return convert(lambda tensor, dtype: cast(tensor.detach(), dtype), FLOAT32, value)


@_in_regions
def _read_by_numpy(original: Function, *args: Any, **kwargs: Any) -> Any:
    # float16, too: `Auc` would find the wrong one of its 4,095 intervals.
    return original(*map(_readable, args), **{k: _readable(v) for k, v in kwargs.items()})


@_in_regions
def _to_tensor(original: Function, data: object, *args: Any, **kwargs: Any) -> Any:
    # Paddle reads a list of tensors as NumPy arrays.
    return original(data if isinstance(data, Tensor) else _readable(data), *args, **kwargs)


#: Functions of Python code: the module, the path inside it, and the maker of the replacement.
_HOOKS: tuple[tuple[str, str, Replacement], ...] = (
    ("paddle.autograd.ir_backward", "calc_gradient_helper", _without_policy),
    # The part of a step that clips, regularises and updates, in every optimizer but LBFGS, which
    # computes outside of it.
    ("paddle.optimizer.optimizer", "Optimizer._apply_optimize", _without_policy),
    ("paddle.optimizer.lbfgs", "LBFGS.step.__wrapped__", stepping(thread)),
    ("paddle.incubate.optimizer.functional.bfgs", "minimize_bfgs", _minimize),
    ("paddle.incubate.optimizer.functional.lbfgs", "minimize_lbfgs", _minimize),
    ("paddle.nn.utils.clip_grad_norm_", "clip_grad_norm_", _widening),
    ("paddle.nn.clip", "ClipGradBase.__call__", _widening),
    ("paddle.autograd.autograd", "_Jacobian.__getitem__", _widening),
    ("paddle.incubate.autograd.functional", "_Jacobian.__getitem__", _widening),
    # Other functions that make or change parameters and state.
    ("paddle.nn.initializer.orthogonal", "Orthogonal.__call__", _without_policy),
    ("paddle.nn.utils.spectral_norm_hook", "spectral_norm", _without_policy),
    ("paddle.nn.utils.weight_norm_hook", "weight_norm", _without_policy),
    ("paddle.nn.utils.weight_norm_hook", "remove_weight_norm", _without_policy),
    # The buffers and the results of the layers of `paddle.audio.features`.
    # A logarithm of at least 1e-10, which is zero in float16.
    ("paddle.audio.functional.functional", "power_to_db", native.in_float32(_is_active)),
    ("paddle.audio.functional.window", "get_window", _without_policy),
    *(
        ("paddle.audio.functional.functional", name, _without_policy)
        for name in ("compute_fbank_matrix", "create_dct", "mel_frequencies")
    ),
    ("paddle.incubate.optimizer.modelaverage", "ModelAverage.apply", _averaged),
    ("paddle.nn.utils.transform_parameters", "parameters_to_vector", _without_policy),
    ("paddle.nn.utils.transform_parameters", "vector_to_parameters", _vector_to_parameters),
    ("paddle.base.layer_helper_base", "LayerHelperBase.create_parameter", _create_parameter),
    ("paddle.tensor.creation", "assign", _assign),
    ("paddle.static.nn.control_flow", "LoopVar.bind_next_var", _carried),
    ("paddle.static.nn.control_flow", "OutputSelector.precision_promotion", _promoted),
    *(
        ("paddle.metric.metrics", f"{metric}.update", _read_by_numpy)
        for metric in ("Precision", "Recall", "Auc")
    ),
    ("paddle.audio.backends.wave_backend", "save", _read_by_numpy),
    ("paddle.nn.initializer.assign", "Assign.__init__", _read_by_numpy),
    ("paddle.tensor.manipulation", "tolist", _read_by_numpy),
    ("paddle.tensor.creation", "to_tensor", _to_tensor),
    *(
        ("paddle.tensor.linalg", name, native.in_float32(_decomposes_in_float32))
        for name in ("pca_lowrank", "svd_lowrank")
    ),
    # They compute pixels' coordinates, and compare colours: low numbers give other pixels.
    *(
        ("paddle.vision.transforms.functional_tensor", name, _widening)
        for name in ("adjust_hue", "affine", "perspective", "rotate")
    ),
    ("paddle.distributed.fleet.recompute.recompute", "recompute", _recompute),
    ("paddle", "Tensor.register_hook", _register_hook),
    ("paddle", "Tensor.__setitem__", _setitem),
    ("paddle", "Tensor.set_value", _written),
    *(("paddle", f"{name}_", _in_place(name)) for name in ("frac", "masked_scatter", "nan_to_num")),
    ("paddle.amp.auto_cast", "amp_guard.__wrapped__", native.inside_regions),
    ("paddle.amp.auto_cast", "is_autocast_enabled", native.told_of_region),
    ("paddle.amp.auto_cast", "get_autocast_dtype", native.told_of_dtype),
    ("paddle.base.framework", "Block.append_op", programs.refusing),
    ("paddle.jit.dy2static.py_layer", "StaticPyLayer.apply", _static_apply),
    ("paddle.hapi.model", "to_numpy", _to_numpy),
    ("paddle.nn.decode", "BeamSearchDecoder._beam_search_step", _beam_search_step),
    ("paddle.nn.layer.transformer", "_convert_attention_mask", _convert_attention_mask),
)
if find("paddle.incubate.optimizer.lbfgs", "LBFGS") is not None:
    # LBFGS by its older, deprecated name, which a later version may not have.
    _HOOKS += (("paddle.incubate.optimizer.lbfgs", "LBFGS.step", stepping(thread)),)
#: Functions of Paddle's compilers, which must also know the rules for single layers.
_COMPILERS: tuple[tuple[str, str, Replacement], ...] = (
    ("paddle.jit.dy2static.program_translator", "CacheKey.__init__", compiling.keyed_program),
    ("paddle.jit.dy2static.utils", "parse_arg_and_kwargs", compiling.as_written),
    ("paddle.jit.dy2static.utils", "parse_varargs_name", compiling.as_written),
    ("paddle.jit.sot.infer_meta", "InferMetaCache.key_fn", compiling.keyed),
    ("paddle.jit.sot.infer_meta", "LayerInferMetaCache.key_fn", compiling.keyed),
    ("paddle.jit.sot.symbolic.compile_cache", "CompileSIRCache.key_fn", compiling.keyed),
    (
        "paddle.jit.sot.opcode_translator.executor.executor_cache",
        "OpcodeExecutorCache.__call__",
        compiling.per_policy,
    ),
)


@cache
def _hook(module: str, path: str, replacement: Replacement) -> CodePatch:
    return CodePatch(find(module, path), replacement)


@cache
def _compilers() -> tuple[PatchGroup]:
    return (PatchGroup(_hook(*each) for each in _COMPILERS),)


# --- putting in and taking out --------------------------------------------------------------------

_always: tuple[Patch, ...] = ()
# The modules themselves, not their names or ids, which a later module may have.
_modules_seen: list[object] = []


@cache
def _base() -> tuple[Patch, ...]:
    """Return the patches of every region that do not depend on the imported modules."""
    arithmetic = {
        name: entry(operator)
        for name, operator in tensor_operators().items()
        if operator.op not in COMPARISONS
    }
    methods = {
        "copy_": _written(Tensor.copy_),
        "to_sparse_csr": _to_sparse_csr(Tensor.to_sparse_csr),
    }
    # C++ functions that Paddle looks up in their module at every call.
    eager = vars(core.eager)
    backward = {name: _without_policy(eager[name]) for name in ("run_backward", "run_partial_grad")}
    return (
        *bindings.everywhere(),
        MethodsPatch(Tensor, {**arithmetic, **methods}),
        AttributePatch(paddle.autograd.PyLayer, "apply", lambda own: classmethod(_apply)),
        NamesPatch(eager, backward),
    )


def _needed_always() -> tuple[Patch, ...]:
    """Return the patches of every region."""
    global _always, _modules_seen
    # A module that was imported since may have new names for forward functions.
    modules: list[object] = list(sys.modules.values())
    if modules != _modules_seen:
        _always, _modules_seen = (compiling.not_simulated(_group),), modules
    return _always


def _group() -> PatchGroup:
    codes = [_hook(*each) for each in _HOOKS if each[0] in sys.modules]
    return PatchGroup((*codes, *distributions.making(), *bindings.found(), *_base()))


def acquire(plan: Plan) -> None:
    """Apply the patches that a region under this plan needs, until `release`."""
    installed.acquire(plan, lambda: plan.patches)


def patched(plan: Plan) -> AbstractContextManager[None]:
    """Apply the patches that a region under this plan needs while the context is open."""
    return installed.patched(plan, lambda: plan.patches)


def _forget() -> None:
    thread.plan, thread.sink = None, None


compilers = Patches(_compilers)
installed = Patches(_needed_always, _forget, compilers)
release = installed.release
