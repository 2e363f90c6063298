"""The places where Paddle's code must know about regions, replaced while a region is open.

`acquire` puts the replacements in with the first open region of the process, `release` takes them out with the last. What
stands in asks first whether the calling thread is in a region, so that other threads see the original.
"""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
import paddle
from paddle.base import core

from unamp.adapter.patching import Patches, find, missing
from unamp.adapter.replacing import AttributePatch, CodePatch, MethodsPatch, NamesPatch, PatchGroup, PropertiesPatch
from unamp.adapter.state import suspended, suspending
from unamp.regions import innermost_region
from unamp.vocabulary import vocabulary
from unamp_paddle import compiling
from unamp_paddle.calls import Operator, entry
from unamp_paddle.casting import cast, tensors
from unamp_paddle.facts import facts
from unamp_paddle.spellings import named
from unamp_paddle.state import Tensor, Value, dtype_of, thread

if TYPE_CHECKING:
    from unamp_paddle.plans import Plan

__all__ = [
    "acquire",
    "assisted",
    "comparisons",
    "everything",
    "installed",
    "own",
    "probe",
    "release",
    "standing_in",
    "wholes",
]

_BUILTIN = types.BuiltinFunctionType

#: Tensor's arithmetic and comparison operators are C++ of their own and call no forward function. (Those of the values that
#: `to_static` traces are Python.)
_ARITHMETIC = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floor_divide", "mod": "remainder", "pow": "pow",
    "matmul": "matmul",
}  # fmt: skip
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")

#: Modules that users take forward functions from, as attributes, where this Paddle has them.
_MODULES = ("paddle._C_ops", "paddle.tensor", "paddle.tensor.ops", "paddle.linalg", "paddle.special")
#: Modules whose own names for forward functions must stay: they are, differentiate or carry out what is computed.
_NOT_SWEPT = (
    "libpaddle",
    "paddle._pir_ops",
    "decomposition",
    "primitives",
    "composite_rules",
    "paddle.pir",
    "paddle.optimizer",
    "unamp_paddle",
)

#: Layers that are one operation: `forward` of a class in `paddle.nn`, and the operation.
_LAYERS = {
    "RNN": "rnn", "BiRNN": "rnn", "LSTMCell": "lstm_cell", "GRUCell": "gru_cell", "SimpleRNNCell": "rnn_cell",
    "MultiHeadAttention": "multi_head_attention", "TransformerEncoderLayer": "transformer_encoder_layer",
    "TransformerDecoderLayer": "transformer_decoder_layer",
}  # fmt: skip


# --- the operations ----------------------------------------------------------------------------------------------------------


def _recurrent(mode: str) -> str:
    return "rnn" if mode.startswith("RNN") else mode.lower()


def _convolution(kind: str) -> str:
    return {"depthwise_conv3d": "conv3d"}.get(kind, kind)


def _depthwise(function: types.FunctionType, op: str) -> Callable[[Any, Any], str]:
    import inspect

    bind = inspect.signature(function).bind

    def which(args: Any, kwargs: Any) -> str:
        try:
            given = bind(*args, **kwargs).arguments
            x, weight, groups = given["x"], given["weight"], given.get("groups", 1)
            channels = x.shape[1 if given.get("data_format", "NCHW").startswith("NC") else -1]
        except (TypeError, KeyError, AttributeError):
            return op
        return f"depthwise_{op}" if 1 < channels == groups and weight.shape[0] % channels == 0 else op

    return which


def _padding(args: Any, kwargs: Any) -> str:
    mode = kwargs["mode"] if "mode" in kwargs else args[2] if len(args) > 2 else "constant"
    if mode == "circular":
        return "circular_pad"
    kind = {"reflect": "reflection_pad", "replicate": "replication_pad"}.get(mode)
    return f"{kind}{_argument(args, kwargs, 0, 'x').ndim - 2}d" if kind else "pad"


def _indexing(args: Any, kwargs: Any) -> str:
    items = args[1] if isinstance(args[1], tuple) else (args[1],)
    return "index" if any(isinstance(item, (Tensor, Value, list, np.ndarray)) for item in items) else "slice"


def _embedding(position: int) -> Callable[[Any, Any], str | None]:
    # With a sparse gradient it is nothing that a rule could reach: Paddle's cast of such a gradient reads foreign memory.
    def which(args: Any, kwargs: Any) -> str | None:
        sparse = kwargs["sparse"] if "sparse" in kwargs else len(args) > position and args[position]
        return None if sparse else "embedding"

    return which


#: Forward functions that are several operations, or none, by their arguments.
_WHICH: dict[str, Callable[[Any, Any], str | None]] = {
    "embedding": _embedding(3),
    "rnn": lambda args, kwargs: _recurrent(_argument(args, kwargs, 10, "mode")),
}


@cache
def _forward() -> dict[str, Operator]:
    """The forward functions of `paddle._C_ops` that a rule, or a low tensor, can need something done about."""
    names = vars(paddle._C_ops)
    spelled = _spelled()
    found = {}
    for name, call in names.items():
        if not isinstance(call, _BUILTIN) or name.startswith("__") or name.endswith(("_grad", "_grad_")):
            continue
        base = name.rstrip("_")
        if name in facts().left_alone or base in facts().left_alone or base.startswith(("sparse_", "strings_", "get_core_ops")):
            continue
        op = spelled.get(name)
        if op is not None and vocabulary()[op].group == "cast":
            continue
        if op is None and name.endswith("_"):
            if base in spelled and base in names:
                op, view = spelled[base], _is_view(base, spelled[base])
                found[name] = Operator(op, f"_C_ops.{name}", call, inplace=True, view=view, twin=names[base])
            elif name in facts().filling:
                found[name] = Operator(None, f"_C_ops.{name}", call, inplace=True, twin=call)
            continue  # the others are optimizers and communication
        found[name] = Operator(op, f"_C_ops.{name}", call, view=_is_view(name, op), which=_WHICH.get(name))
    return found


def _is_view(name: str, op: str | None) -> bool:
    return name in facts().views or (op is not None and vocabulary()[op].keeps_its_meaning)


def _argument(args: Any, kwargs: Any, position: int, name: str) -> Any:
    return kwargs[name] if name in kwargs else args[position]


@cache
def _spelled() -> dict[str, str]:
    return {spelling: op.name for op in vocabulary().values() for spelling in op.spellings.get("paddle", ())}


@cache
def _operators() -> dict[str, Operator]:
    """Tensor's operators."""
    found = {}
    for name, op in _ARITHMETIC.items():
        for method in (f"__{name}__", f"__r{name}__"):
            if method in vars(Tensor):
                found[method] = Operator(op, f"Tensor.{method}", vars(Tensor)[method])
    for op in _COMPARISONS:
        found[f"__{op}__"] = Operator(op, f"Tensor.__{op}__", vars(Tensor)[f"__{op}__"], view=True)
    return found


@cache
def wholes() -> tuple[Operator, ...]:
    """The functions and layers in Python that are one operation of the vocabulary."""
    return tuple(_codes())


@cache
def _codes() -> dict[Operator, CodePatch]:
    made: dict[Operator, CodePatch] = {}
    taken: set[Any] = set()

    def add(function: Any, op: str, name: str, **kinds: Any) -> None:
        if not isinstance(function, types.FunctionType) or function in taken:
            return
        taken.add(function)
        operator = Operator(op, name, function, whole=True, **kinds)

        def instead(original: Any) -> Any:
            operator.call = original
            return entry(operator)

        made[operator] = CodePatch(function, instead)

    functional, conv, rnn = paddle.nn.functional, paddle.nn.functional.conv, paddle.nn.layer.rnn
    add(conv._conv_nd, "conv2d", "nn.functional.conv._conv_nd", which=lambda a, k: _convolution(_argument(a, k, 10, "op_type")))
    add(functional.conv2d, "conv2d", "nn.functional.conv2d", which=_depthwise(functional.conv2d, "conv2d"))
    add(rnn.RNNBase.forward, "rnn", "nn.layer.rnn.RNNBase.forward", layer=True, which=lambda a, k: _recurrent(a[0].mode))
    for name, op in _LAYERS.items():
        add(getattr(paddle.nn, name).forward, op, f"nn.{name}.forward", layer=True)
    add(functional.embedding, "embedding", "nn.functional.embedding", which=_embedding(5))
    add(functional.pad, "pad", "nn.functional.pad", which=_padding)
    add(Tensor.__getitem__, "index", "Tensor.__getitem__", direct=True, which=_indexing)
    for spelling, op in _spelled().items():
        if vocabulary()[op].group == "cast":
            continue
        add(_python(spelling), op, spelling, view=vocabulary()[op].keeps_its_meaning)
    for method, operator in _operators().items():
        # What `to_static` traces: there the operators are Python, and an addition of a number runs as `scale`.
        add(vars(Value).get(method), operator.op, f"Value.{method}", view=operator.view, direct=True)  # type: ignore[arg-type]
    return made


def _python(spelling: str) -> Any:
    value = named(spelling)
    if isinstance(value, types.FunctionType) and value.__code__.co_filename.endswith("generated_tensor_methods_patch.py"):
        return None  # hands its arguments to the forward function of that name
    return value


@cache
def _by_function() -> dict[Any, CodePatch]:
    return {code.function: code for code in _codes().values()}


def own(function: Any) -> Any:
    """A function of Paddle's as it is written, whatever it runs at the moment."""
    code = _by_function().get(getattr(function, "__func__", function))
    return code.original if code is not None and code.applied else function


@cache
def everything() -> tuple[Operator, ...]:
    """All operations."""
    return (*_forward().values(), *_operators().values(), *wholes())


def standing_in(operators: Iterable[Operator]) -> PatchGroup:
    """What lets others run in place of wholes, to put in and take out together."""
    return PatchGroup(_codes()[operator] for operator in operators)


# --- functions of Paddle that must know about regions ----------------------------------------------------------------------


@contextmanager
def assisted() -> Iterator[None]:
    """No policy is in force in this thread, but it can compute with low tensors where the device cannot."""
    from unamp_paddle.plans import idle

    helping = idle(watching=False)
    acquire(helping)
    plan, thread.plan = thread.plan, helping
    try:
        yield
    finally:
        thread.plan = plan
        release()


def _backward(original: Callable[..., Any]) -> Callable[..., Any]:
    # Backward runs in the dtype of its forward; and what was kept belongs to a graph that is now used up.
    @functools.wraps(original)
    def run(*args: Any, **kwargs: Any) -> Any:
        if thread.plan is None:
            return original(*args, **kwargs)
        try:
            with suspended(thread):
                return original(*args, **kwargs)
        finally:
            if thread.weights:
                thread.weights.clear()

    return run


def _recompute(original: Callable[..., Any]) -> Callable[..., Any]:
    # Recomputation remembers the state of Paddle's own AMP for the second forward, and not ours.
    def recompute(function: Any, *args: Any, **kwargs: Any) -> Any:
        region = innermost_region()
        if thread.plan is None or region is None:
            return original(function, *args, **kwargs)
        return original(_in_region(function, region), *args, **kwargs)

    return recompute


def _in_region(function: Any, region: Any) -> Any:
    forward = function.forward if isinstance(function, paddle.nn.Layer) else function

    @functools.wraps(forward)
    def run(*args: Any, **kwargs: Any) -> Any:
        with region:
            return function(*args, **kwargs)

    return run


def _register_hook(original: Callable[..., Any]) -> Callable[..., Any]:
    # A hook on a low tensor gets a low gradient, maybe long after the region.
    def register_hook(self: Any, hook: Any) -> Any:
        if thread.plan is None:
            return original(self, hook)

        @functools.wraps(hook)
        def helped(grad: Any) -> Any:
            with assisted():
                return hook(grad)

        return original(self, helped)

    return register_hook


@cache
def _helped(layer: type) -> type:
    """A PyLayer whose backward can compute with the low gradients that a forward inside a region leads to.

    What it answers has the dtypes of the inputs: before 3.3 Paddle does not see to that by itself.
    """

    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._unamp_dtypes = [dtype_of(tensor) for tensor in tensors((args, kwargs))]
        return layer.forward(ctx, *args, **kwargs)  # type: ignore[attr-defined]

    def backward(ctx: Any, *grads: Any) -> Any:
        with assisted():
            found = layer.backward(ctx, *grads)  # type: ignore[attr-defined]
            if isinstance(found, Tensor):
                return cast(found, ctx._unamp_dtypes[0])
            return tuple(map(_as, found, ctx._unamp_dtypes)) if len(found) == len(ctx._unamp_dtypes) else found

    own = {"forward": staticmethod(forward), "backward": staticmethod(backward), "__module__": layer.__module__}
    return type(layer)(layer.__name__, (layer,), own)


def _as(gradient: Any, dtype: Any) -> Any:
    return gradient if gradient is None else cast(gradient, dtype)


def _apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
    plain = super(paddle.autograd.PyLayer, cls if thread.plan is None else _helped(cls)).apply
    return plain(*args, **kwargs)


#: Functions of Python code: the module, the path inside it, and what makes the replacement.
_HOOKS = (
    ("paddle.autograd.ir_backward", "grad", suspending(thread)),
    ("paddle.autograd.ir_backward", "append_backward", suspending(thread)),
    # What clips, regularises and updates: every optimizer's step but that of LBFGS, which calls a closure that computes.
    ("paddle.optimizer.optimizer", "Optimizer._apply_optimize", suspending(thread)),
    ("paddle.distributed.fleet.recompute.recompute", "recompute", _recompute),
    ("paddle", "Tensor.register_hook", _register_hook),
    ("paddle.jit.dy2static.program_translator", "CacheKey.__init__", compiling.keyed_program),
    ("paddle.jit.dy2static.utils", "parse_arg_and_kwargs", compiling.as_written),
    ("paddle.jit.dy2static.utils", "parse_varargs_name", compiling.as_written),
    ("paddle.jit.sot.infer_meta", "InferMetaCache.key_fn", compiling.keyed),
    ("paddle.jit.sot.infer_meta", "LayerInferMetaCache.key_fn", compiling.keyed),
    ("paddle.jit.sot.symbolic.compile_cache", "CompileSIRCache.key_fn", compiling.keyed),
    ("paddle.jit.sot.opcode_translator.executor.executor_cache", "OpcodeExecutorCache.__call__", compiling.per_policy),
)
#: Functions of C++ that Paddle looks up in a module at every call.
_BUILTIN_HOOKS = (("run_backward", _backward), ("run_partial_grad", _backward))


@cache
def _hook(number: int) -> CodePatch:
    module, path, replacement = _HOOKS[number]
    return CodePatch(find(module, path), replacement)


# --- putting in and taking out ---------------------------------------------------------------------------------------------

_always: PatchGroup | None = None
_swept: dict[str, int] = {}
_early: list[NamesPatch] = []
_modules_seen = 0


@cache
def _entries() -> dict[str, Any]:
    return {name: entry(operator) for name, operator in _forward().items()}


@cache
def _base() -> tuple[Any, ...]:
    """What every region needs."""
    entries = _entries()
    by_id = {id(operator.call): name for name, operator in _forward().items()}
    made: list[Any] = []
    for module in (sys.modules[path] for path in _MODULES if path in sys.modules):
        names = {k: entries[by_id[id(v)]] for k, v in list(vars(module).items()) if id(v) in by_id}
        made.append(PropertiesPatch(module, names))
    arithmetic = {n: entry(o) for n, o in _operators().items() if o.op not in _COMPARISONS}
    made.append(MethodsPatch(Tensor, arithmetic))
    made.append(AttributePatch(paddle.autograd.PyLayer, "apply", lambda own: classmethod(_apply)))
    backward = vars(core.eager)
    made.append(NamesPatch(backward, {name: make(backward[name]) for name, make in _BUILTIN_HOOKS}))
    return tuple(made)


@cache
def comparisons() -> MethodsPatch:
    """What stands in for a Tensor's comparison operators."""
    return MethodsPatch(Tensor, {n: entry(o) for n, o in _operators().items() if o.op in _COMPARISONS})


def _needed_always() -> PatchGroup:
    """What every region needs, together; it grows with what is imported."""
    global _always, _modules_seen
    if _always is None or len(sys.modules) != _modules_seen:
        _sweep()
        codes = [_hook(number) for number, (module, _, _) in enumerate(_HOOKS) if module in sys.modules]
        _always, _modules_seen = PatchGroup((*codes, *_early, *_base())), len(sys.modules)
    return _always


def _sweep() -> None:
    """Find the modules, Paddle's and others, that bound a forward function when they were imported."""
    entries = _entries()
    by_id = {id(operator.call): name for name, operator in _forward().items()}
    for name, module in list(sys.modules.items()):
        space = getattr(module, "__dict__", None)
        if not isinstance(space, dict) or _swept.get(name) == id(module):
            continue
        _swept[name] = id(module)
        if name in _MODULES or any(part in name for part in _NOT_SWEPT):
            continue
        held = {k: entries[by_id[id(v)]] for k, v in list(space.items()) if type(v) is _BUILTIN and id(v) in by_id}
        if held:
            _early.append(NamesPatch(space, held))


def acquire(plan: Plan) -> None:
    """A region opens in some thread."""
    installed.acquire(plan.wholes, plan.needs)


def _forget() -> None:
    thread.plan, thread.weights, thread.sink = None, None, None


installed = Patches(lambda: (_needed_always(),), _forget)
release = installed.release


def probe() -> None:
    """Check that everything that is replaced is where it is expected.

    Raises:
        FrameworkNotSupported: naming the version of Paddle and what is missing.
    """
    paths = [(module, path) for module, path, _ in _HOOKS if module in sys.modules]
    paths += [("paddle.base", f"core.eager.{name}") for name, _ in _BUILTIN_HOOKS]
    paths += [("paddle._C_ops", name) for name in ("matmul", "cast", "assign_out_", "rnn", "conv2d")]
    paths += [("paddle.nn.functional.conv", "_conv_nd"), ("paddle.nn.layer.rnn", "RNNBase.forward")]
    paths += [("paddle", "Tensor._inplace_version")]
    paths += [("paddle.base", "core.AmpLevel.O0"), ("paddle.base.framework", "_dygraph_tracer")]
    paths += [("paddle.base", "core._get_registered_phi_kernels"), ("paddle.framework", "_current_expected_place")]
    paths += [("paddle", f"Tensor.__{name}__") for name in (*_ARITHMETIC, *_COMPARISONS)]
    for module, path in paths:
        if find(module, path) is None:
            raise missing("paddle", paddle.__version__, f"{module}.{path}")
