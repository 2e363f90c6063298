"""Code bound to a policy, for MindSpore's compiler.

The compiler asks Python for the object of each name in the source (`unamp_mindspore.resolving`). In
code that is bound to a policy, it is given one that is bound, too: for an operation a function of
`graph_calls`, for a function a copy, for a cell a twin with the same parameters, for a module a
proxy. Each is an object of its own, since the compiler keeps what it has read by identity, and
names found in it are bound to the same policy. So parts of one graph can follow different policies:
the innermost decorator decides.

MindSpore's own strategy is attached as well, for operations that the compiler resolves in C++.
Where C++ has no kernel for the dtype, the compilation fails: no policy is lost in silence.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Any, TypeVar

from mindspore import _c_expression, amp, nn, ops
from mindspore.experimental import optim
from mindspore.experimental.optim import lr_scheduler
from mindspore.nn.learning_rate_schedule import LearningRateSchedule
from mindspore.ops.function.grad import grad_func
from mindspore.ops.primitive import Primitive

from unamp._function_types import Function
from unamp.adapter.layers import REGION, LayerRegion, RulesInForce
from unamp.adapter.plans import ban_message, is_listed
from unamp.adapter.replacing import Replacement
from unamp.adapter.wrapping import derived_class
from unamp.errors import BannedOperation, NotExpressible
from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary
from unamp_mindspore import graph_operators
from unamp_mindspore.copies import Kept, begun, function_copy
from unamp_mindspore.decorators import inside, stated
from unamp_mindspore.drawing import inside_drawing
from unamp_mindspore.facts import facts
from unamp_mindspore.graph_calls import (
    BOUND,
    CASTS_NOTHING,
    Low,
    agreeing,
    as_first,
    bits_of,
    casting_inputs,
    changing,
    converting,
    in_place,
    indexing,
    low,
    low_norm,
    method,
    of_a_tensor,
    of_tensors,
    setting,
    wide,
    with_statistics,
)
from unamp_mindspore.listing import changing_functions, functions, layer_operation, tensor_methods
from unamp_mindspore.operators import parameters_of
from unamp_mindspore.rewriting import CONVERTED, STATISTICS
from unamp_mindspore.spellings import spelled
from unamp_mindspore.state import DTYPES, FLOAT32, Dtype, Tensor, on_cpu
from unamp_mindspore.strategies import STRATEGY, strategy

#: The attribute of a cell's class that holds a wrapped network's policy; see
#: `unamp_mindspore.networks`.
POLICY = "_unamp_network_policy"

#: The bases of cells that follow no policy: optimizers, learning rates and loss scales.
WITHOUT_POLICY = (
    nn.Optimizer,
    optim.Optimizer,
    LearningRateSchedule,
    nn.DynamicLossScaleUpdateCell,
)

#: The same among classes that are no cells.
_OBJECTS_WITHOUT_POLICY = (
    lr_scheduler.LRScheduler,
    lr_scheduler.ReduceLROnPlateau,
    lr_scheduler.SequentialLR,
    amp.DynamicLossScaler,
    amp.StaticLossScaler,
)

#: The rules for single layers: graphs follow them, too.
layer_rules = RulesInForce()

#: The classes of primitives: Python's, and a separate one of C++.
_PRIMITIVES = (Primitive, getattr(_c_expression, "PrimitiveFunction_", Primitive))

#: Callables without source: a graph calls back into Python for them.
_OPAQUE = (functools.partial, functools._lru_cache_wrapper)

#: Objects made for the graph that is being compiled, which nothing else keeps alive. The compiler
#: knows objects by id, so none may be freed and its id taken by another meanwhile.
kept_alive: list[object] = []

#: The result of `bits_of` for float32 parameters.
_FLOAT32_ALONE = bits_of([Tensor(0.0, FLOAT32)])

#: The function that makes the vectors of `jacrev`.
_JACREV_VECTORS = getattr(grad_func, "_jacrev_construct_v", None)

#: Modules in which no rule applies: the compiler knows their functions, or has Python run them.
_WITHOUT_OPERATIONS = sys.stdlib_module_names | {"numpy", "scipy"}

_OFF = Policy(enabled=False)

CodeT = TypeVar("CodeT", bound=types.FunctionType | types.ModuleType)


class _CellClass(type):
    """The class of classes in place of others: bound code may ask cells whether they are of one."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__mro__[1])


class Binding:
    """A policy for code that MindSpore compiles.

    Attributes:
        policy: the policy; None where it changes nothing.
        strategy: MindSpore's own.
    """

    def __init__(self, policy: Policy | None) -> None:
        self.policy = policy
        self.strategy = strategy(policy)
        stated = policy or _OFF
        self._rules, self._stated = stated.rules, stated
        self._emulates = on_cpu()  # as in PyNative mode
        self._low = Low(DTYPES[stated.dtype], self._emulates, stated.widen_results)
        self._kept, self._roots, self._layers, self._functions = Kept(), Kept(), Kept(), Kept()

    def bound(self, value: object, symbol: str = "") -> Any:
        """Return the form that a value has in code under this policy.

        Raises:
            BannedOperation: for an operation that the policy bans.
            NotExpressible: for an object that the policy would not reach.
        """
        if isinstance(value, types.FunctionType):
            return value if BOUND in vars(value) else self._decorated(value, self._function)
        if isinstance(value, _PRIMITIVES):
            return self._kept.get(value, self._primitive)
        if isinstance(value, types.MethodType):
            return self._decorated(value, self._method)
        if isinstance(value, nn.Cell):
            return self._cell(value)
        if isinstance(value, (list, tuple)):
            return _each(value, self.bound)
        if isinstance(value, types.ModuleType):
            if value.__name__.partition(".")[0] in _WITHOUT_OPERATIONS:
                return value
            return self._kept.get(value, self._module)
        if isinstance(value, ops.MultitypeFuncGraph):
            return self._kept.get(value, self._by_types)
        if isinstance(value, (ops.HyperMap, ops.Map)) and value.ops is not None:
            return self._kept.get(value, lambda mapping: type(mapping)(self.bound(mapping.ops)))
        if isinstance(value, ops.GradOperation) and value.sens_param:
            return self._kept.get(value, graph_operators.taking_vectors)
        if isinstance(value, type) and issubclass(value, (Primitive, ops.GradOperation)):
            return self._kept.get(value, self._operation_class)
        if isinstance(value, type) and issubclass(value, nn.Cell) and type(value) is type:
            return self._kept.get(value, self._cell_class)
        if isinstance(value, _OPAQUE) and self.policy is not None:
            raise NotExpressible(
                f"{symbol} is a {type(value).__name__}, which MindSpore's compiler does not read: "
                "Python runs it when the graph runs, out of reach of the policy; write a function "
                "that does the same (def), or call it in PYNATIVE_MODE without mindspore.jit"
            )
        if hasattr(type(value), "__ms_class__") and not hasattr(value, BOUND):
            return (PARTS if isinstance(value, _OBJECTS_WITHOUT_POLICY) else self)._object(value)
        return value

    def _decorated(self, value: types.FunctionType | types.MethodType, plain: Function) -> Function:
        """Return a function or method bound to the policy that its decorators leave inside it."""
        policy, casts = inside(value, self.policy)
        other = self if policy == self.policy else binding(policy)
        made: Function = plain(value) if other is self else plain.__func__(other, value)  # type: ignore[attr-defined]
        for dtype in reversed(casts):
            made = self._kept.get(made, functools.partial(casting_inputs, dtype=DTYPES[dtype]))
        return made

    # --- operations -------------------------------------------------------------------------------

    def _primitive(self, value: Primitive) -> Function | Primitive:
        op = spelled().get(value.name)
        if op is None or vocabulary()[op].group == "cast":
            return value
        if value.name in facts().changing:
            return changing(value)
        return _updating(value, self._by_rule(op, value))

    def _operation_class(self, value: type) -> type:
        """Return a class of the same name, whose instances are bound as the compiler makes them."""
        return derived_class(value, {BOUND: self})  # type: ignore[no-any-return]

    def _by_rule(self, op: str, call: Function) -> Function:
        """Return the function that computes `call` under the rule of `op`; maybe `call` itself."""
        rule = self._rules[op]
        if rule is Rule.BANNED:
            raise BannedOperation(ban_message(self._stated, op))
        if rule is Rule.LOW:
            return (low_norm if vocabulary()[op].group == "norm" else low)(call, self._low)
        if rule is Rule.FP32:
            return wide(call)
        if rule is Rule.UNTOUCHED and not self._emulates:
            return call
        if vocabulary()[op].group == "norm":
            return as_first(call, emulated=self._emulates)
        return agreeing(call, narrowest=rule is Rule.NARROWEST, emulated=self._emulates)

    def _follows_parts(self, op: str) -> bool:
        return op in facts().transparent and not is_listed(self._stated, op)

    @cached_property
    def names(self) -> dict[str, Function]:
        """Functions for Python's operators and tensors' methods.

        The keys are the names that `unamp_mindspore.rewriting` writes into the source.
        """
        made = {}
        for kind, (op, call) in graph_operators.OPERATORS.items():
            takes = of_a_tensor if issubclass(kind, ast.unaryop) else of_tensors
            computed = made[f"unamp_{op}"] = takes(call, self._by_rule(op, call))
            # MindSpore's tensors have no `**=` and `@=`: both make a new tensor.
            made[f"unamp_in_place_{op}"] = (
                computed if op in ("pow", "matmul") else in_place(call, computed)
            )
        made["unamp_gradients"] = graph_operators.gradients_like
        made["unamp_item_set"] = setting(graph_operators.with_item, emulated=self._emulates)
        for name, call in graph_operators.ATTRIBUTES.items():
            made[f"unamp_attribute_{name}"] = self._moving(call)
        same = graph_operators.itself
        made["unamp_subscript"] = indexing(
            self._moving(graph_operators.subscript),
            of_a_tensor(same, self._by_rule("index", same)),
        )
        for op, call in graph_operators.BUILTINS.items():
            if self._rules[op] is not Rule.BANNED:
                made[f"unamp_builtin_{op}"] = of_a_tensor(call, self._by_rule(op, call))
        for name, op in tensor_methods().items():
            if vocabulary()[op].group != "cast" and self._rules[op] is not Rule.BANNED:
                call = method(name)
                made[f"unamp_method_{name}"] = of_a_tensor(call, self._by_rule(op, call))
        # MindSpore copies by dividing by 1, which would follow the rule of a division.
        made["unamp_method_copy"] = method("copy")
        return made

    def _moving(self, call: Function) -> Function:
        # Indices are never cast: casting a list makes it a tuple, which indexes otherwise.
        return of_a_tensor(call, as_first(call, emulated=self._emulates))

    # --- code -------------------------------------------------------------------------------------

    def _function(self, value: types.FunctionType) -> Function:
        return self._kept.get(inspect.unwrap(value), self._made_function)

    def _made_function(self, value: types.FunctionType) -> Function:
        if value is ops.clip_by_global_norm:
            # Like an optimizer's step it follows no rule, and it casts to float32 by itself.
            return binding(Policy("OD", self._stated.dtype))._copy(value)
        if value is _JACREV_VECTORS:
            return graph_operators.vectors_like_results(PARTS.bound(value))
        if value is ops.vjp:
            return graph_operators.vectors_like_products(self._copy(value))
        if value in changing_functions():
            return changing(PARTS.bound(value))
        op = functions().get(value)
        if op is None or self._follows_parts(op):
            return self._copy(value)
        # The copy calls the norm's primitive, which carries the rule out: it casts the activation.
        if vocabulary()[op].group == "norm" and (
            self._rules[op] is not Rule.FP32 or op == "batch_norm"
        ):
            return self._copy(value)
        return self._by_rule(op, PARTS.bound(value))

    def _copy(self, value: types.FunctionType) -> types.FunctionType:
        return value if _has_own(vars(value)) else self._marked(function_copy(value))

    def root(self, function: types.FunctionType) -> types.FunctionType:
        """Return the copy of a function that a graph is compiled from, without its decorators."""
        return self._roots.get(
            inspect.unwrap(function), lambda plain: self._marked(function_copy(plain))
        )

    def _method(self, value: types.MethodType) -> object:
        owner = self.bound(value.__self__)
        function = value.__func__
        if isinstance(function, types.FunctionType) and BOUND not in vars(function):
            function = self._kept.get(inspect.unwrap(function), self._copy)
        kept_alive.append(types.MethodType(function, owner))
        return kept_alive[-1]

    def _cell_class(self, value: type) -> type:
        """Return the same for a class of cells, of which all instances of that one are, too."""
        return _CellClass(value.__name__, (value,), {"__module__": value.__module__, BOUND: self})

    def _by_types(self, value: ops.MultitypeFuncGraph) -> ops.MultitypeFuncGraph:
        """Return functions that are chosen by the types of their arguments, each of them bound."""
        made = ops.MultitypeFuncGraph("bound")  # the given one does not tell its name
        for kinds, function in value.entries:
            made.register(*kinds)(self.bound(function))
        return made

    def _module(self, value: types.ModuleType) -> types.ModuleType:
        made = types.ModuleType(value.__name__)
        vars(made).update(vars(value))
        # At exit, too: Python would empty a module in it that is alive then, `mindspore.nn.cell`
        # for one, before it frees the cells of a program.
        weakref.finalize(made, vars(made).clear)
        return self._marked(made)

    def _cell(self, value: nn.Cell) -> nn.Cell | Function:
        if isinstance(value, WITHOUT_POLICY):
            return PARTS.twin(value)
        if _has_own(vars(value)):
            return value
        original = vars(value).get(_ORIGINAL, lambda: value)()
        policy, casts = policy_of_cell(original, self.policy)
        other = self if policy == self.policy else binding(policy)
        made = other.layer(original) or other.twin(original)
        for dtype in reversed(casts):
            made = self._kept.get(made, functools.partial(casting_inputs, dtype=DTYPES[dtype]))
        return made

    def layer(self, cell: nn.Cell) -> nn.Cell | None:
        """Return the cell that replaces a layer that is one operation.

        None for other cells, and where the layer's parts follow its rule by themselves.

        The cell has the layer's attributes, since a network may read them: the weight, say.
        """
        function = self.layer_function(cell)
        if function is None:
            return None
        made = self._layers.get(cell, begun)
        self._become(made, cell)
        vars(made).update(computed_by(made, function))
        return made

    def layer_function(self, cell: nn.Cell) -> Function | None:
        """Return the function that computes a layer that is one operation; None as for `layer`."""
        op = layer_operation(cell)
        if op is None or self._follows_parts(op):
            return None
        rule, own = self._rules[op], bits_of(parameters_of(cell).values())
        if rule is Rule.BANNED:
            return self._by_rule(op, cell)
        if getattr(cell, "mixed_precision_type", None) is not None:
            # `to_float`: MindSpore casts inputs and parameters where the cell uses them, after any
            # cast of a rule, as in PyNative mode. The function is kept apart from those of rules.
            return self._compute_by(cell, ~own, PARTS, wide)
        if (
            op == "batch_norm"
            and self._emulates
            and self.policy is not None
            and _updates_bfloat16(cell)
        ):
            raise NotExpressible(
                f"this {type(cell).__name__} has running statistics in bfloat16, which no graph "
                "can update on the CPU: MindSpore has no kernel there that assigns bfloat16; keep "
                "them in float32, or train in PYNATIVE_MODE without mindspore.jit"
            )
        norm = vocabulary()[op].group == "norm"
        if rule is Rule.LOW and not norm:
            rounding = _converted(self._low.dtype, self._emulates)
            return self._compute_by(cell, own, rounding, lambda call: low(call, self._low, own))
        if rule is Rule.FP32 or norm or not own:
            parts = _converted(FLOAT32, False) if own & ~_FLOAT32_ALONE else PARTS
            return self._compute_by(cell, own, parts, functools.partial(self._by_rule, op))
        if rule is Rule.WIDEST and own == _FLOAT32_ALONE:
            return self._compute_by(cell, own, PARTS, wide)
        return None

    def _compute_by(self, cell: nn.Cell, own: int, parts: Binding, make: Replacement) -> Function:
        call = parts.twin(cell)  # at each call: the twin takes over the cell's present attributes
        made: dict[int, Function] = self._functions.get(cell, lambda _: {})
        if own not in made:
            made[own] = make(call)
        return made[own]

    def twin(self, cell: nn.Cell) -> nn.Cell:
        """Return a cell's twin, bound to this policy, with the parameters that the cell has now."""
        made = self._kept.get(cell, begun)
        self._become(made, cell)
        if isinstance(cell, (nn.CellList, nn.CellDict)):
            made._cells = type(cell._cells)(
                (name, self.bound(each)) for name, each in cell._cells.items()
            )
        return made

    def _become(self, made: nn.Cell, cell: nn.Cell) -> None:
        """Give a new cell the attributes that another one has now."""
        state = {**vars(cell), _ORIGINAL: weakref.ref(cell), BOUND: self, STRATEGY: self.strategy}
        if (given := getattr(cell, "_cell_init_args", None)) is not None:
            # The compiler takes cells that were made with equal arguments for the same code.
            state["_cell_init_args"] = f"{given} {id(made)}"
        state["compile_cache"] = set()  # not shared: a freed cell deletes the graphs in its own
        vars(made).clear()
        vars(made).update(state)

    def _object(self, value: object) -> object:
        """Return an object of a class of `mindspore.jit_class`."""
        made = self._kept.get(value, copy.copy)
        vars(made).update({**vars(value), BOUND: self})
        return made

    def _marked(self, made: CodeT) -> CodeT:
        vars(made).update({BOUND: self, STRATEGY: self.strategy})
        return made


# Named `construct`: MindSpore keeps the method's name in the cell as that of the method to compile,
# and a twin has the cell's attributes.
def construct(self, *inputs, **named):  # type: ignore[no-untyped-def]
    """Compute a cell by the function that replaces it, for the compiler."""
    return self.unamp_function(*inputs, **named)


def computed_by(cell: nn.Cell, function: Function) -> dict[str, Function]:
    """Return the attributes by which a cell is compiled as the function that replaces it."""
    return {"construct": types.MethodType(construct, cell), "unamp_function": function}


class _Parts(Binding):
    """The binding for the code inside an operation, where no rule holds.

    It leaves code alone that is not MindSpore's own.
    """

    @cached_property
    def names(self) -> dict[str, Function]:
        """No functions: Python's operators follow no rule either."""
        return {}

    def bound(self, value: object, symbol: str = "") -> Any:
        if (
            isinstance(value, types.FunctionType)
            and BOUND not in vars(value)
            and _is_own(value.__module__)
        ):
            return self._kept.get(value, self._copy)
        if isinstance(value, types.MethodType) and isinstance(
            value.__self__, (*WITHOUT_POLICY, *_OBJECTS_WITHOUT_POLICY)
        ):
            return self._method(value)
        if type(value) is types.ModuleType and _is_own(value.__name__):
            return self._kept.get(value, self._module)
        return value


class _LayerParts(_Parts):
    """The binding for the code of a layer that is one operation: it casts parameters at use."""

    def __init__(self, dtype: Dtype, rounded: bool) -> None:
        super().__init__(None)
        self._converting = converting(dtype, rounded=rounded)

    @cached_property
    def names(self) -> dict[str, Function]:
        """The function that casts parameters."""
        return {CONVERTED: self._converting}

    def bound(self, value: object, symbol: str = "") -> Any:
        if isinstance(value, nn.Cell) and BOUND not in vars(value):
            return self.twin(value)
        if isinstance(value, _PRIMITIVES):
            return self._kept.get(value, lambda primitive: _updating(primitive, primitive))
        return super().bound(value, symbol)


@cache
def _converted(dtype: Dtype, rounded: bool) -> _LayerParts:
    return _LayerParts(dtype, rounded)


def _updating(primitive: Primitive, computed: Function) -> Function:
    """Return the function for a primitive; that of a batch norm updates low statistics, too."""
    if spelled().get(primitive.name) != "batch_norm" or not hasattr(primitive, "is_training"):
        return computed
    return with_statistics(computed, training=primitive.is_training)


def _updates_bfloat16(norm: nn.Cell) -> bool:
    stated = getattr(norm, "use_batch_statistics", None)
    updates = norm.training if stated is None else stated
    statistics = (getattr(norm, name, None) for name in STATISTICS)
    return updates and any(
        each is not None and each.dtype == DTYPES["bfloat16"] for each in statistics
    )


def _is_own(module: str | None) -> bool:
    return (module or "").startswith("mindspore.")


#: The attribute of a twin that holds a weak reference to its cell.
_ORIGINAL = "_unamp_original"


def _has_own(attributes: Mapping[str, object]) -> bool:
    """Return whether MindSpore's own AMP (level "auto") gave an object a strategy.

    Inside the object that strategy holds, and not the policy.
    """
    # `CASTS_NOTHING` is unamp's own, for graphs without a policy.
    return BOUND not in attributes and attributes.get(STRATEGY) not in (None, CASTS_NOTHING)


def _each(values: Sequence[object], to: Callable[[object], object]) -> Any:
    """Return a list or tuple with bound items; the same object where no item needs binding."""
    made = [to(value) for value in values]
    if all(one is other for one, other in zip(made, values, strict=True)):
        return values
    kept_alive.append(made if isinstance(values, list) else tuple(made))
    return kept_alive[-1]


def policy_of_cell(cell: nn.Cell, around: Policy | None) -> tuple[Policy | None, list[str]]:
    """Return the policy inside a cell, and the dtypes that its inputs are cast to.

    The innermost policy decides: a decorator of `construct`, then the policy of a wrapped network,
    then the rule of the layer.
    """
    policy = around
    region: LayerRegion | None = vars(cell).get(REGION)
    if region is not None:
        if region.result is not None:
            raise NotExpressible(
                f"this {type(cell).__name__} has a rule that no graph can follow: none casts a "
                'result; leave result="low" out'
            )
        policy = stated(region.policy(None if around is None else around.dtype))
    own = getattr(type(cell), POLICY, None)
    policy, casts = inside(cell.construct, policy if own is None else stated(own))
    return inside_drawing(cell, policy), casts


@cache  # for good: the compiler keeps graphs by the ids of the objects in a binding
def _binding(policy: Policy | None, rules: object) -> Binding:
    return Binding(policy)


def binding(policy: Policy | None) -> Binding:
    """Return the binding of a policy, under the rules that single layers have now.

    The policy None is that of code in which regions are switched off.
    """
    return _binding(policy, layer_rules.key)


def where_decorated(value: object) -> object:
    """Return a value found in code without a policy, bound if it has a policy of its own."""
    if isinstance(value, (types.FunctionType, types.MethodType)):
        policy = (
            None if BOUND in vars(getattr(value, "__func__", value)) else inside(value, None)[0]
        )
    elif isinstance(value, nn.CellList):
        found = _each(list(value), where_decorated)
        return (
            value if all(one is other for one, other in zip(found, value, strict=True)) else found
        )
    elif isinstance(value, nn.Cell):
        policy = None if BOUND in vars(value) else policy_of_cell(value, None)[0]
    elif isinstance(value, (list, tuple)):
        return _each(value, where_decorated)
    else:
        return value
    return value if policy is None else binding(policy).bound(value)


#: The binding for the code inside operations.
PARTS: Binding = _Parts(None)
