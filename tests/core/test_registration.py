"""`register_operation` without a framework: names are added, and errors leave none behind."""

from __future__ import annotations

import math
import pickle
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import unamp
from unamp import Policy, Rule, register_operation, vocabulary

NAME = "tests::mine"


def mine(x: Any) -> Any:
    return x


def steps(x: Any) -> Iterator[Any]:
    yield x


async def later(x: Any) -> Any:
    return x


class _Closed(type):
    def __setattr__(cls, name: str, value: object) -> None:
        raise TypeError(f"cannot set {name!r}")


class Applied:
    @staticmethod
    def apply(x: Any) -> Any:
        return x


class Inherits(Applied):
    pass


class Closed(Applied, metaclass=_Closed):
    pass


@pytest.fixture
def registration() -> Iterator[unamp.Registration]:
    made = register_operation(NAME, mine, rule="low", parts=["softmax"])
    yield made
    made.undo()


def test_the_rule_that_presets_give_it_and_where_it_comes_from(
    registration: unamp.Registration,
) -> None:
    assert str(registration) == f"<operation {NAME!r}>"
    assert Policy().reason(NAME).origin == "preset unamp: allow list"
    assert Policy(preset="torch-cuda").decide(mine) is Rule.LOW
    assert Policy(preset="none").decide(mine) is Rule.WIDEST
    assert Policy(deny="softmax").reason(NAME).origin == "your deny list: it computes with softmax"
    assert Policy(deny=[mine, "matmul"]) == Policy(deny=["matmul", NAME])
    assert pickle.loads(pickle.dumps(Policy(deny=NAME))) == Policy(deny=NAME)
    assert Policy.from_toml(Policy(deny=NAME).to_toml()) == Policy(deny=NAME)


def test_policies_that_were_made_before_are_as_they_were() -> None:
    before = Policy(deny="*mul"), Policy(deny="group:norm")
    registration = register_operation("tests::mul")
    assert (Policy(deny="matmul"), before[1]) == (Policy(deny="matmul"), Policy(deny="group:norm"))
    assert "tests::mul" not in before[0].deny
    assert before[0].decide("tests::mul") is Rule.WIDEST
    registration.undo()
    assert Policy(deny="*mul") == before[0]


def test_it_stands_wherever_the_function_stood(registration: unamp.Registration) -> None:
    here = sys.modules[__name__]
    assert mine.__wrapped__.__name__ == "mine"  # type: ignore[attr-defined]
    registration.undo()
    registration.undo()  # a second call does nothing
    assert not hasattr(here.mine, "__wrapped__")
    assert str(registration).endswith("undone>")
    with pytest.raises(ValueError, match="register it again"):
        registration(math.sin)


def test_what_somebody_put_there_since_stays(registration: unamp.Registration) -> None:
    here, original = sys.modules[__name__], mine.__wrapped__  # type: ignore[attr-defined]
    here.mine = len  # type: ignore[attr-defined]
    try:
        registration.undo()
        assert here.mine is len  # type: ignore[attr-defined]
    finally:
        here.mine = original  # type: ignore[attr-defined]


def test_a_class_with_an_inherited_apply() -> None:
    registration = register_operation(NAME, Inherits)
    assert Policy(deny=Inherits).deny == (NAME,)
    assert Inherits.apply(3) == 3
    registration.undo()
    assert "apply" not in vars(Inherits)


@pytest.mark.parametrize(
    ("name", "functions", "arguments", "error", "message"),
    [
        (
            "softmax",
            (),
            {},
            ValueError,
            "is the operation 'softmax' already; choose another name, such as 'mine::softmax'",
        ),
        ("torch.nn.functional.linear", (), {}, ValueError, "is the operation 'linear' already"),
        ("mine*", (), {}, ValueError, "is no name for an operation"),
        ("group:norm", (), {}, ValueError, "is no name for an operation"),
        ("", (), {}, ValueError, "is no name for an operation"),
        ("mine::", (), {}, ValueError, "is no name for an operation"),
        ("mine::f g", (), {}, ValueError, "is no name for an operation"),
        (mine, (), {}, TypeError, "the name of an operation is a string"),
        (NAME, (), {"rule": "lo"}, ValueError, "unknown rule 'lo'; .*valid: low, float32, widest"),
        (NAME, (), {"rule": Rule.LOW}, ValueError, "unknown rule"),
        (NAME, (), {"parts": ["softmaxx"]}, ValueError, "unknown operation 'softmaxx'"),
        (NAME, (), {"parts": "softmax"}, TypeError, "parts is a tuple or list"),
        (NAME, (3,), {}, TypeError, "an operation is a function, or a class with an apply, not 3"),
        (NAME, (mine, int), {}, TypeError, "an operation is a function"),
        (NAME, (mine, lambda x: x), {}, ValueError, "stands under no name in a loaded module"),
        (NAME, (Applied,), {}, ValueError, "has an apply of its own"),
        (
            NAME,
            (steps,),
            {},
            TypeError,
            "steps returns a generator, which runs when its call is over",
        ),
        (NAME, (later,), {}, TypeError, "later returns a coroutine"),
    ],
)
def test_bad_input_registers_nothing(
    name: Any,
    functions: tuple[Any, ...],
    arguments: dict[str, Any],
    error: type[Exception],
    message: str,
) -> None:
    operations, generation = dict(vocabulary()), vocabulary().generation
    with pytest.raises(error, match=message):
        register_operation(name, *functions, **arguments)
    assert (dict(vocabulary()), vocabulary().generation) == (operations, generation)
    assert not hasattr(mine, "__wrapped__")


def test_what_cannot_be_replaced_leaves_nothing_registered() -> None:
    with pytest.raises(TypeError, match="cannot set 'apply'"):
        register_operation(NAME, mine, Closed)
    assert NAME not in vocabulary()
    assert not hasattr(mine, "__wrapped__")


def test_registered_twice(registration: unamp.Registration) -> None:
    with pytest.raises(ValueError, match=f"'{NAME}' is the operation '{NAME}' already"):
        register_operation(NAME)
    with pytest.raises(ValueError, match="mine is the operation 'tests::mine' already"):
        register_operation("tests::other", mine)
    assert "tests::other" not in vocabulary()


def test_names_that_are_registered_nowhere() -> None:
    with pytest.raises(
        ValueError, match="no operation 'mine::gone' is registered here.*register_operation it"
    ):
        Policy(deny="mine::gone")
    registration = register_operation("mine::gone")
    text = unamp.Precision(Policy(deny="mine::gone")).to_toml()
    registration.undo()
    with pytest.raises(ValueError, match="registered here"):
        unamp.Precision.from_toml(text)


def test_a_region_says_what_is_registered_no_more() -> None:
    registration = register_operation(NAME)
    region = unamp.policy_region(Policy(deny=NAME))
    with region:
        pass
    registration.undo()
    with (
        pytest.raises(ValueError, match="names 'tests::mine', which is registered no more"),
        region,
    ):
        pass
