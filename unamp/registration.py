"""Registered operations: a user's function gets a name in the vocabulary, and rules apply to it."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from operator import is_
from types import ModuleType
from typing import Any, Literal, NamedTuple, get_args

from unamp import amp_warnings
from unamp._compiler_marks import not_converted, once_per_trace
from unamp._function_types import F, Function
from unamp._region_decorator import runs_later
from unamp.adapter import Support
from unamp.adapter.arguments import cast_eligible, leaves, mapped
from unamp.adapter.framework_types import Tensor
from unamp.adapter.observing import unreported
from unamp.adapter.open_traces import traces
from unamp.adapter.performing import target
from unamp.adapter.records import OpRecord
from unamp.adapter.registered import CALLED_AS_THEY_ARE, CarriesOutRegistered
from unamp.adapter.registry import adapters_in_use, installed, renew
from unamp.adapter.replacing import AttributePatch
from unamp.adapter.shadowing import NO_PRODUCT, LeftOut
from unamp.dtypes import ELIGIBLE, FLOAT8, FLOAT32, LOW_DTYPES
from unamp.errors import NotExpressible, shortened, unknown
from unamp.lists import EVERYTHING, operation_name
from unamp.policy import Policy, Rule
from unamp.regions import Region
from unamp.vocabulary import (
    NAMERS,
    OPERATORS,
    REGISTERED,
    Operation,
    spelling_of_object,
    vocabulary,
)

#: The attribute of a function that holds the name of the operation that it is, for adapters whose
#: compilers run no decorators.
OPERATION = "__unamp_operation__"

#: The rules that presets with lists can give a registered operation.
RegisteredRule = Literal["low", "float32", "widest"]

_RULES: tuple[str, ...] = get_args(RegisteredRule)

_lock = threading.RLock()


class Example(NamedTuple):
    """An example call of a registered operation on one framework; see `Registration.example`."""

    function: Function
    args: tuple[object, ...]
    attributes: Mapping[str, object]


#: The example calls, by operation and framework.
_examples: dict[tuple[str, str], Example] = {}


def examples(framework: str) -> Mapping[str, Example]:
    """Return the example calls of registered operations on a framework, by operation."""
    with _lock:
        return {name: example for (name, on), example in _examples.items() if on == framework}


def register_operation(
    name: str,
    *functions: Callable[..., Any],
    rule: RegisteredRule = "widest",
    parts: tuple[str, ...] | list[str] = (),
) -> Registration:
    """Make functions one operation of the vocabulary.

    Lists, groups, traces, files and everything else that names operations then know it.

    A call of such a function is one operation: its tensors are cast as its rule says, and no rule
    applies inside it. Presets with lists treat it as one of theirs: with the rule ``"low"`` as if
    it were on their allow list, with ``"float32"`` on their deny list. A policy's own lists and
    level go before, as for every operation; the preset ``"none"`` has no list.

        unamp.register_operation("mine::attention", kernels.attention, rule="low")

        @unamp.register_operation("mine::log_density", rule="float32")
        def log_density(x, mean): ...

    Args:
        name: its canonical name, such as ``"mine::attention"``: a new one, without ``*``.
        functions: any number of functions, of any frameworks, that are this operation: functions of
            Python or C++, objects that are called like one (a `jax.custom_vjp`), and classes with
            an ``apply`` (`torch.autograd.Function`, `paddle.autograd.PyLayer`). A function is
            replaced in every loaded module that has it under a name; a class gets another
            ``apply``. A function that no module has (one inside another function) is decorated
            instead.
        rule: the rule that presets with lists give it: ``"low"``, ``"float32"``, or ``"widest"``,
            the rule of operations on no list.
        parts: operations that it computes with; a user's ``deny`` of a part denies the whole.

    Returns:
        The registration: it decorates further functions, and `Registration.undo` takes it back.

    Raises:
        TypeError: for a name that is no string, and for a value that is no function.
        ValueError: for a name or a function that is an operation already, an unknown rule or part,
            and a function that no loaded module has. Nothing is registered then.
    """
    _check_name(name)
    if rule not in _RULES:
        raise ValueError(unknown("rule", rule, _RULES))
    if isinstance(parts, str):
        raise TypeError(
            f"parts is a tuple or list of operations, not the string {shortened(parts)}"
        )
    named = tuple(operation_name("parts", part) for part in parts)
    with _lock:
        known = vocabulary()
        operators = [found for function in functions if (found := _operator(function))]
        named_before = {
            known.spelled(framework)[name]
            for framework, name in operators
            if name in known.spelled(framework)
        }
        if taken := [other for other in named_before if known[other].group != OPERATORS]:
            raise ValueError(f"{taken[0]!r} is a registered operation already; undo that first")
        places = [
            place
            for function in functions
            if _operator(function) is None
            for place in _places(function)
        ]
        for other in named_before:  # added when a list named it: the registration replaces it
            known.remove(other)
        spellings: dict[str, tuple[str, ...]] = {}
        for framework, operator in operators:
            spellings[framework] = (*spellings.get(framework, ()), operator)
        known.add(Operation(name, REGISTERED, named, spellings, registered=rule))
        _changed(operators)
        registration = Registration(name, operators)
        try:
            for place in places:
                registration._replace(*place)
        except BaseException:  # a class may refuse another apply
            registration.undo()
            raise
    return registration


class Registration:
    """The registration of an operation, which decorates further functions and can be undone."""

    def __init__(self, name: str, operators: object = ()) -> None:
        self.name = name
        self._operators = operators
        self._replaced: list[tuple[Function, Function, AttributePatch]] = []
        self._undone = False

    def __repr__(self) -> str:
        return f"<operation {self.name!r}{', undone' if self._undone else ''}>"

    def __call__(self, function: F) -> F:
        """Return a function that calls the given one under the operation's rule.

        Raises:
            TypeError: for a value that is no function.
            ValueError: for a function that is an operation already, and after `undo`.
        """
        _check_function(function)
        if self._undone:
            raise ValueError(f"{self.name!r} is no operation any more: register it again")
        return _under_its_rule(self, function)  # type: ignore[return-value]

    def example(
        self, framework: str, function: Callable[..., Any], *args: object, **attributes: object
    ) -> Registration:
        """Give the conformance suite an example call of the operation on a framework.

        The suite measures the operation's precision with that call.

            normal = "normal 2x4x8"
            operation.example("torch", kernels.attention, normal, normal, normal, causal=True)

        Args:
            framework: the framework, by its import name.
            function: what is called: a function of this operation, or one that calls it.
            args: positional arguments. A string such as ``"normal 4x8"`` is an array that the suite
                makes (a kind and a shape; `unamp_conformance.check.arrays` has the kinds). A list
                of such strings is a list of tensors. Anything else is passed on.
            attributes: arguments by keyword, passed on.

        Returns:
            The registration itself.

        Raises:
            TypeError: for a value that is no function.
            ValueError: for a framework that no adapter is installed for, and after `undo`.
        """
        if framework not in installed():
            raise ValueError(unknown("framework", framework, installed()))
        if not callable(function):
            raise TypeError(f"an example calls a function, not {shortened(function)}")
        with _lock:
            if self._undone:
                raise ValueError(f"{self.name!r} is no operation any more: register it again")
            _examples[self.name, framework] = Example(function, args, attributes)
        return self

    def undo(self) -> None:
        """Put functions back where they were, and forget the operation.

        Decorated functions then run as without their decorator. A region whose policy names the
        operation raises an error when it opens. Programs that were compiled before stay as they
        are.
        """
        with _lock:
            if self._undone:
                return
            self._undone = True
            for _, _, patch in reversed(self._replaced):
                patch.undo()
            for key in [key for key in _examples if key[0] == self.name]:
                del _examples[key]
            vocabulary().remove(self.name)
            _changed(self._operators)

    def _replace(self, function: Function, owner: Any, name: str) -> None:
        # One wrapper for each function, in all modules: programs compare functions with `is`.
        known = (made for other, made, _ in self._replaced if other is function)
        replacement = next(known, None) or _under_its_rule(self, function)
        is_class = isinstance(owner, type)
        patch = AttributePatch(
            owner, name, lambda own: staticmethod(replacement) if is_class else replacement
        )
        patch.apply()
        self._replaced.append((function, replacement, patch))
        if is_class:
            # a compiler looks for its forward and backward, whatever its apply is
            _called_as_it_is(owner)


def _places(function: Function) -> list[tuple[Function, Any, str]]:
    """Return a function with each module or class that has it, and its name there.

    See `register_operation`.
    """
    if isinstance(function, type) and callable(getattr(function, "apply", None)):
        apply: Function = function.apply  # type: ignore[attr-defined]
        if known := _name_of(function):
            raise ValueError(f"{function.__qualname__} is the operation {known!r} already")
        if "apply" in vars(function):
            raise ValueError(f"{function.__qualname__} has an apply of its own: decorate that")
        return [(apply, function, "apply")]
    _check_function(function)
    found = [
        (function, module, name)
        for module in list(sys.modules.values())
        if isinstance(module, ModuleType)
        for name, value in list(vars(module).items())
        if value is function
    ]
    if not found:
        said = getattr(function, "__qualname__", shortened(function))
        raise ValueError(
            f"{said} stands under no name in a loaded module, so nothing that calls it can be "
            'reached: decorate it, as in @unamp.register_operation("mine::name")'
        )
    return found


def _operator(function: object) -> tuple[str, str] | None:
    """Return the framework that dispatches an operator, and its qualified name; else None."""
    framework, _, operator = (spelling_of_object(function) or "").partition(".")
    return (framework, operator) if "::" in operator else None


def _changed(operators: object) -> None:
    """Have regions ask for their plans again.

    Adapters make new plans where operators of their frameworks have got other rules.
    """
    if operators:
        for adapter in adapters_in_use():
            if isinstance(adapter, CarriesOutRegistered):
                adapter.operators_changed()
    renew()


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise TypeError(
            f"the name of an operation is a string, not {shortened(name)}; "
            "register_operation takes functions after it"
        )
    readable = all(name.split("::")) and name.isprintable() and not any(map(str.isspace, name))
    if not readable or EVERYTHING in name or name.startswith("group:"):
        raise ValueError(
            f"{shortened(name)} is no name for an operation; write one such as 'mine::attention'"
        )
    try:
        known = vocabulary().resolve(name)
    except ValueError:
        return
    if vocabulary()[known].group == OPERATORS:  # a list named it before
        return
    raise ValueError(
        f"{name!r} is the operation {known!r} already; choose another name, such as 'mine::{name}'"
    )


def _check_function(function: object) -> None:
    if not callable(function) or isinstance(function, type):
        raise TypeError(
            f"an operation is a function, or a class with an apply, not {shortened(function)}; "
            "pass what is called with tensors"
        )
    said = getattr(function, "__qualname__", shortened(function))
    if kind := runs_later(function):
        raise TypeError(
            f"{said} returns a {kind}, which runs when its call is over: no rule could be about "
            "it; register what it calls"
        )
    if (known := spelling_of_object(function)) is not None:
        raise ValueError(f"{said} is the operation {known!r} already")


def _name_of(value: object) -> str | None:
    """Return the name of the operation that a function or class was registered as, or None."""
    of_class = getattr(value, "apply", None) if isinstance(value, type) else None
    name = getattr(of_class or value, OPERATION, None)
    return name if isinstance(name, str) and name in vocabulary() else None


NAMERS.insert(0, _name_of)


def _under_its_rule(registration: Registration, function: Function) -> Function:
    """Return a function that calls another one under the rule for the operation."""
    name = registration.name
    warned: set[tuple[str, type]] = set()

    @functools.wraps(function)
    def carried_out(*args: Any, **kwargs: Any) -> Any:
        adapter: Any
        for adapter in adapters_in_use():
            if not _serves(adapter):
                continue
            if adapter.thread.plan is not None:
                _warn_of_unreached(adapter, call, warned, (args, kwargs))
            if tensors := _eligible(adapter, (args, kwargs)):
                return _Call(adapter, name, function).run(tensors, args, kwargs)
        return function(*args, **kwargs)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return (
            function(*args, **kwargs)
            if registration._undone or _idle()
            else carried_out(*args, **kwargs)
        )

    setattr(call, OPERATION, name)
    not_converted(call)
    _called_as_it_is(carried_out)
    return call


def of_every_operation(name: str, policy: Policy) -> Policy | None:
    """Return the policy for a registered operation's body, where a compiler reads its source.

    Every operation in the body gets the rule of the registered one.

    Args:
        policy: the policy around its call, with lists of its own.

    Returns:
        The policy; None where nothing is changed.
    """
    rule = policy.rules[name]
    if rule is Rule.LOW:
        return policy.replace(level="O3", allow=(), deny=())
    if rule is Rule.FP32:
        return policy.replace(level="O1", allow=(), deny=EVERYTHING)
    return (
        None
        if rule is Rule.UNTOUCHED
        else policy.replace(level="O1", preset="none", allow=(), deny=())
    )


def _called_as_it_is(function: Function) -> None:
    CALLED_AS_THEY_ARE.append(function)
    for adapter in adapters_in_use():
        if isinstance(adapter, CarriesOutRegistered):
            adapter.called_as_it_is(function)


@once_per_trace
def _idle() -> bool:
    """Return whether no framework has a policy in force in this thread, or reports anything."""
    return not any(map(_serves, adapters_in_use()))


def _serves(adapter: object) -> bool:
    thread = getattr(adapter, "thread", None)  # an adapter need not know of registered operations
    return thread is not None and (thread.plan is not None or thread.sink is not None)


def _within(adapter: Any, value: object, wanted: Callable[[Tensor], bool]) -> list[Tensor]:
    """Return the wanted tensors of a framework in a value, at any depth."""
    found: list[Tensor] = []

    def note(tensor: Tensor) -> Tensor:
        if wanted(tensor):
            found.append(tensor)
        return tensor

    mapped(value, adapter.is_tensor, note, adapter.opened)
    return found


def _warn_of_unreached(
    adapter: Any, call: Function, warned: set[tuple[str, type]], value: object
) -> None:
    """Warn of arguments that hold tensors, and that no adapter can open as containers.

    Networks, functions, and an object whose own method is the operation are left out.

    Args:
        warned: the classes of its arguments that have been warned of, by framework.
    """
    for each in leaves(value):
        kind = type(each)
        if kind in _PLAIN or (adapter.framework, kind) in warned:
            continue
        if (
            adapter.is_tensor(each)
            or callable(each)
            or isinstance(each, ModuleType)
            or adapter.is_network(each)
        ):
            continue
        if adapter.opened(each) is not None:
            continue
        if any(getattr(base, call.__name__, None) is call for base in kind.__mro__):
            continue
        held = leaves(list(getattr(each, "__dict__", {}).values()))
        if any(adapter.is_tensor(one) and adapter.dtype_of(one) in ELIGIBLE for one in held):
            # another object of the class may hold tensors where this one holds none
            warned.add((adapter.framework, kind))
            amp_warnings.not_reached(getattr(call, OPERATION), kind.__qualname__)


_PLAIN = frozenset({bool, bytes, complex, float, int, str, type(None)})


def _eligible(adapter: Any, value: object) -> list[Tensor]:
    return _within(adapter, value, lambda tensor: adapter.dtype_of(tensor) in ELIGIBLE)


class _Call(NamedTuple):
    """One call of a registered operation on one framework's tensors."""

    adapter: Any
    name: str
    function: Function

    def run(
        self, tensors: list[Tensor], args: tuple[object, ...], kwargs: Mapping[str, object]
    ) -> object:
        """Carry the rule out, and report the call where a trace is open.

        Raises:
            NotExpressible: where the function changes an argument in place that was cast for it:
                the change would be lost with the copy.
        """
        adapter = self.adapter
        device = adapter.device_of(tensors[0])
        stated: Policy | None = adapter.policy_for(tensors[0])
        policy = None if stated is None else stated.delegated(adapter.framework, device)
        dtypes = [adapter.dtype_of(tensor) for tensor in tensors]
        rule = Rule.UNTOUCHED if policy is None else policy.rules[self.name]
        wanted = None
        if policy is not None and rule is not Rule.UNTOUCHED:
            wanted = target(rule, policy.dtype, FLOAT32, dtypes, len({*dtypes}) > 1)
        observer = adapter.thread.sink
        shadowed: bool = observer is not None and traces.shadow is not None and not traces.waiting
        watched: Any = nullcontext()
        if shadowed:
            watched = adapter.second_run(_within(adapter, (args, kwargs), lambda tensor: True))
        # The call is one operation: no rule applies inside it, and nothing inside is reported.
        with (
            _off(adapter.framework),
            nullcontext() if observer is None else unreported(adapter.thread),
            watched as second,
        ):
            result, emulated = self._computed(device, wanted, args, kwargs)
            if policy is not None and rule is Rule.LOW and policy.widen_results:
                result = self._cast(result, FLOAT32)
        if observer is None:
            return result
        computed = wanted or (dtypes[0] if len({*dtypes}) == 1 else FLOAT32)
        native = getattr(self.function, "__qualname__", self.name)
        record = OpRecord(self.name, native, rule, tuple(dtypes), computed, None, emulated)

        def low(dtype: str) -> object:
            if dtype in FLOAT8:
                raise LeftOut(NO_PRODUCT)
            with _off(adapter.framework):
                return second(
                    lambda: self._floating(self._computed(device, dtype, args, kwargs)[0])
                )

        results = self._floating(result)
        going_on = adapter.report_registered(
            observer, record, tensors, results, low if shadowed else None
        )
        others = {
            id(old): new for old, new in zip(results, going_on, strict=True) if new is not old
        }
        if not others:
            return result
        return mapped(
            result, adapter.is_tensor, lambda tensor: others.get(id(tensor), tensor), adapter.opened
        )

    def _computed(
        self,
        device: str,
        dtype: str | None,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
    ) -> tuple[object, bool]:
        """Return the result for arguments in a dtype, and whether that is emulated.

        With None the arguments are left as they are.
        """
        emulated = dtype in LOW_DTYPES and self.adapter.support(device, dtype) is Support.EMULATED
        given: Any = (args, kwargs)
        for each in (dtype, FLOAT32 if emulated else None):
            given = self._cast(given, each)
        copies = _replaced(self.adapter, (args, kwargs), given)
        result = self.function(*given[0], **given[1])
        if not all(is_unchanged() for is_unchanged in copies):
            raise NotExpressible(
                f"{self.name!r} changes an argument in place, which was cast for it: the change "
                "would be lost. Return the new value instead, or let no rule cast it: under "
                "rule='widest', and on no list, arguments of one dtype stay as they are"
            )
        return self._cast(result, dtype if emulated else None), emulated

    def _floating(self, result: object) -> list[Tensor]:
        return _within(
            self.adapter, result, lambda tensor: "float" in self.adapter.dtype_of(tensor)
        )

    def _cast(self, value: object, dtype: str | None) -> object:
        """Return a value with its eligible tensors in a dtype; None leaves them as they are."""
        return (
            value
            if dtype is None
            else cast_eligible(self.adapter, value, dtype, self.adapter.opened)
        )


def _replaced(adapter: Any, before: object, after: object) -> list[Callable[[], bool]]:
    """Return, for each tensor and container replaced, a test that the copy is unchanged."""
    if before is after:
        return []
    if adapter.is_tensor(before):
        return [adapter.unchanged(after)]
    leaves, changed = _inside(adapter, before), _inside(adapter, after)
    own = [] if isinstance(before, (dict, list, tuple)) else [adapter.unchanged(after)]
    return [
        *own,
        lambda: len(now := _inside(adapter, after)) == len(changed) and all(map(is_, now, changed)),
        *(each for pair in zip(leaves, changed, strict=True) for each in _replaced(adapter, *pair)),
    ]


def _inside(adapter: Any, value: object) -> list[object]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (tuple, list)) else list(adapter.opened(value)[0])


@functools.cache
def _off(framework: str) -> Region:
    """Return a region in which no rule applies.

    A plain `Region`, not `policy_region`, which a tracing compiler would capture.
    """
    return Region(Policy(enabled=False), framework=framework)
