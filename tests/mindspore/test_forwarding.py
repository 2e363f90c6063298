"""Functions that only hand their arguments on: every Python must take the same ones for such."""

import linecache
import tomllib
from pathlib import Path
from types import FunctionType
from typing import Any

import mindspore
import pytest
from mindspore import ops
from mindspore.ops.primitive import Primitive
from unamp_mindspore import listing
from unamp_mindspore.forwarding import calls_super, handed_to, spread_to
from unamp_mindspore.spellings import named, primitive, spelled
from unamp_mindspore.state import Tensor

from unamp.adapter import major_minor
from unamp.errors import FrameworkNotSupported

VERSION = ".".join(map(str, major_minor(mindspore.__version__)))


def _listed(kind: str) -> set[str]:
    names = tomllib.loads(Path(__file__).with_name("forwarding.toml").read_text("utf-8"))[kind]
    return {*names["always"], *names.get(VERSION, ())}


def _functions() -> dict[str, tuple[Any, str]]:
    found = {path: (named(path), op) for path, op in spelled().items() if "." in path}
    found |= {f"Tensor.{name}": (vars(Tensor).get(name), op) for name, op in listing.tensor_methods().items()}
    return {path: (value, op) for path, (value, op) in found.items() if isinstance(value, FunctionType)}


def _differences(found: set[str], kind: str) -> dict[str, list[str]]:
    return {"found, not listed": sorted(found - _listed(kind)), "listed, not found": sorted(_listed(kind) - found)}


NONE = {"found, not listed": [], "listed, not found": []}


def test_the_functions_that_are_left_alone_are_those_of_the_list():
    found = {path for path, (value, op) in _functions().items() if listing._hands_on(value, op)}
    assert _differences(found, "left_alone") == NONE, f"forwarding.toml, for MindSpore {VERSION}"


def test_the_functions_whose_target_is_called_directly_are_those_of_the_list():
    found = {path for path, (value, _) in _functions().items() if spread_to(value)}
    assert _differences(found, "spread") == NONE, f"forwarding.toml, for MindSpore {VERSION}"


def test_the_primitives_that_run_by_their_name_are_those_of_the_list():
    kinds = {path: primitive(path) for path in spelled() if "." not in path}
    calls = {path: vars(kind).get("__call__") for path, kind in kinds.items() if kind is not None}
    found = {path for path, call in calls.items() if isinstance(call, FunctionType) and calls_super(call)}
    assert _differences(found, "inherited") == NONE, f"forwarding.toml, for MindSpore {VERSION}"


def target(x, *args, **kwargs):
    return x


class Holder:
    target = staticmethod(target)


ADD = ops.Add()


def hands_on(x, y):
    return target(x, y)


def says_what_it_does(x, axis=None):
    """It says so."""
    return target(x, axis, (0, -1), keep=True, named=axis)


def through_a_class(x):
    return Holder.target(x)


def over_lines(
    x,
    y,
):
    return ADD(
        x,
        y,
    )


@staticmethod
def decorated(x):
    return target(x)


def looks_first(x, y=None):
    return target(x) if y is None else target(x, y)


def computes(x):
    return target(x + 1)


def goes_on(x):
    return target(target(x))


def keeps_it(x):
    y = target(x)
    return y  # noqa: RET504


def gives_nothing(x):
    target(x)


def spreads(*args, **kwargs):
    return ADD(*args, **kwargs)


def calls_an_argument(target, x):
    return target(x)


def is_made():
    space: dict[str, Any] = {"target": target}
    exec("def made(x): return target(x)", space)
    return space["made"]


@pytest.mark.parametrize("function", [hands_on, says_what_it_does, through_a_class, decorated.__func__])
def test_what_hands_on(function):
    assert handed_to(function) is target


def test_a_call_may_go_over_lines():
    assert handed_to(over_lines) is ADD


@pytest.mark.parametrize(
    "function",
    [looks_first, computes, goes_on, keeps_it, gives_nothing, spreads, calls_an_argument, is_made(), lambda x: target(x)],
)
def test_what_does_something_else_besides(function):
    assert handed_to(function) is None


def test_what_spreads():
    assert spread_to(spreads) is ADD
    assert spread_to(hands_on) is None


class Calls(Primitive):
    def __call__(self, x, y):
        return super().__call__(x, self.axis, y, 1)


class CallsMore(Primitive):
    def __call__(self, x, y):
        return super().__call__(x, target(y))


class CallsAnother(Primitive):
    def __call__(self, x, y):
        return super().__init__(x, y)


def test_what_calls_super():
    assert calls_super(Calls.__call__)
    assert not calls_super(CallsMore.__call__)
    assert not calls_super(CallsAnother.__call__)
    assert not calls_super(hands_on)


def test_a_mindspore_without_its_source_is_refused_in_words(monkeypatch):
    monkeypatch.setattr(linecache, "getlines", lambda *_: [])
    with pytest.raises(FrameworkNotSupported, match=r"mindspore .* has no source of .*hands_on, which unamp needs"):
        handed_to(hands_on)
