"""Rules for the named scopes of a function.

`jax.named_scope` opens them; haiku does so for the calls of its modules, too. A function is a
network here. While it has rules it runs other code, which follows the scopes that open inside. The
rules of the process are a part of the key of JAX's caches, and inside such a function so is the
thread's scope: JAX finds no program that was traced under other rules, or in another scope.
"""

from __future__ import annotations

import re
import threading
import types
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import jax
from jax import custom_jvp, custom_vjp

from unamp._function_types import Function
from unamp.adapter.layers import LateRules
from unamp.adapter.patching import Patch, Patches, missing
from unamp.adapter.replacing import AttributePatch, CodePatch, as_replacement
from unamp_jax.composites import code_patch
from unamp_jax.spellings import is_of

#: A part of the key of JAX's caches: the rules of this process, and inside a function with rules
#: also where the thread is.
_KEY = jax.make_user_context(None)

#: The names that scopes have for layers. JAX opens some of its own: the equation of an einsum,
#: `rematted_computation`.
_NAME = re.compile(r"(?!rematted_computation$)[\w.~-]+")


def function_of(value: object) -> _Function | None:
    """Return the network of a function, jitted or not, or of a `haiku.transform`; else None."""
    name = getattr(value, "__name__", None)
    if _is_transformed(value):
        name, value = f"{type(value).__name__}.apply", value.apply  # type: ignore[attr-defined]
    function = _inside_of_jit(value)
    if function is None:
        return None
    _scope_class()  # raises where this JAX has another
    found = _functions.get(function)
    if found is None:
        found = _functions[function] = _Function(function, name or function.__name__)
    return found


def _inside_of_jit(value: object) -> types.FunctionType | None:
    """Return a callable's own Python function, or the one under `jax.jit`; None without one."""
    for _ in range(8):
        if isinstance(value, types.FunctionType):
            return value
        if isinstance(value, (custom_jvp, custom_vjp, types.MethodType)):
            # The first two have several functions, and a method's function serves every object.
            return None
        value = getattr(value, "__wrapped__", None)
    return None


def _is_transformed(value: object) -> bool:
    return is_of(value, "haiku", "Transformed") or is_of(value, "haiku", "TransformedWithState")


class _Function:
    """See `unamp.adapter.layers.LateNetwork`."""

    def __init__(self, function: types.FunctionType, name: str) -> None:
        self.name = name
        self.layers: dict[str, None] = {}
        self.rules: Sequence[LateRules] = ()
        self._function = ref(function)
        self._patch: CodePatch | None = None  # keeps the function, as long as there are rules

    def put(self, rules: Sequence[LateRules]) -> None:
        """Make the function's calls follow rules from now on."""
        self.rules = tuple(rules)
        function = self._function()
        if rules and self._patch is None and function is not None:
            self._patch = code_patch(function, partial(_following, self))
            self._patch.apply()
        elif not rules and self._patch is not None:
            self._patch.undo()
            self._patch = None
        _ruled.pop(self, None)
        if rules:
            _ruled[self] = self.rules
        _KEY._obj.set_global(frozenset(_ruled.items()) or None)


_functions: WeakKeyDictionary[types.FunctionType, _Function] = WeakKeyDictionary()

#: The functions that have rules.
_ruled: dict[_Function, Sequence[LateRules]] = {}


class _Call:
    """One call of a function with rules.

    Attributes:
        rules: its rules, as they were when the call began.
        path: the scopes that are open inside.
    """

    def __init__(self, function: _Function) -> None:
        self.function = function
        self.rules = function.rules
        self.path: list[str] = []

    @property
    def key(self) -> tuple[object, ...]:
        """The place of the thread in the call."""
        return self.function, self.rules, tuple(self.path)


class _Inside(threading.local):
    """The place where a thread is.

    Attributes:
        calls: the calls of functions with rules that it is inside of, the outermost first.
        scopes: the scopes that opened in them, each with the stack that closes its regions.
    """

    calls: tuple[_Call, ...] = ()

    def __init__(self) -> None:
        self.scopes: list[tuple[object, ExitStack]] = []


_inside = _Inside()


def _keyed() -> Any:
    return _KEY((_KEY._obj.get_global(), tuple(call.key for call in _inside.calls)))


def _following(function: _Function, original: Function) -> Function:
    """Return the replacement of a function with rules."""

    def call(*args: Any, **kwargs: Any) -> Any:
        outer = _inside.calls
        if any(each.function is function for each in outer):  # it calls itself
            return original(*args, **kwargs)
        here = _Call(function)
        _inside.calls = (*outer, here)
        try:
            with _scopes.patched(), _keyed():
                result = original(*args, **kwargs)
        finally:
            _inside.calls = outer
        for rules in here.rules:
            rules.check(function.layers)
        return result

    return call


# --- the scopes that open in it -------------------------------------------------------------------


@as_replacement
def _entering(original: Function, self: Any) -> object:
    """Stand in for the method by which a named scope opens."""
    if _inside.calls:
        _inside.scopes.append((self, _opened(self.name)))
    return original(self)


@as_replacement
def _leaving(original: Function, self: object, *error: Any) -> object:
    """Stand in for the method by which a named scope closes."""
    # A scope that opened before the call is none of its scopes.
    if _inside.calls and _inside.scopes and _inside.scopes[-1][0] is self:
        _inside.scopes.pop()[1].__exit__(*error)
    return original(self, *error)


def _opened(name: str) -> ExitStack:
    """Open the regions of a scope, and return the stack that closes them."""
    with ExitStack() as stack:
        for part in name.split("/"):
            if _NAME.fullmatch(part):
                for call in _inside.calls:
                    _open(call, part, stack)
        stack.enter_context(_keyed())
        return stack.pop_all()


def _open(call: _Call, part: str, stack: ExitStack) -> None:
    call.path.append(part)
    stack.callback(call.path.pop)
    layer = ".".join(call.path)
    call.function.layers[layer] = None
    regions = (rules.region(layer) for rules in reversed(call.rules))
    if (region := next((each for each in regions if each is not None), None)) is not None:
        stack.enter_context(region.here())


@cache
def _scope_class() -> type:
    """Return the class of named scopes.

    Raises:
        FrameworkNotSupported: where named scopes have no attribute for their name.
    """
    scope = jax.named_scope("unamp")
    if getattr(scope, "name", None) != "unamp":
        raise missing("jax", jax.__version__, "attribute name of what jax.named_scope returns")
    return type(scope)


def _patches() -> Iterable[Patch]:
    kind = _scope_class()
    return AttributePatch(kind, "__enter__", _entering), AttributePatch(kind, "__exit__", _leaving)


_scopes = Patches(_patches)
