"""A patch replaces a Python function for everybody who holds it, and is undone."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from unamp.adapter.patching import Patches
from unamp.adapter.replacing import CodePatch, NamesPatch, PatchGroup, PropertiesPatch, code_of

FACTOR = 2


def double(number: int, *, more: int = 0) -> int:
    return number * FACTOR + more


def closed_over(by: int) -> Any:
    def times(number: int, other: int = 1) -> int:
        return number * by * other

    return times


def twice(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args, **kwargs: (original(*args, **kwargs),) * 2


def written(original: Callable[..., Any]) -> Any:
    source = "def stand_in(given, other=None):\n return (CALL(given), TYPE(given), FACTOR)"
    return code_of(source, {"CALL": original, "TYPE": type, "FACTOR": 3}, closed_over=1)


def test_who_holds_a_function_already_sees_what_stands_in() -> None:
    held, change = double, CodePatch(double, twice)  # type: ignore[arg-type]
    assert not change.applied
    change.apply()
    assert change.applied
    try:
        assert held(2, more=1) == (5, 5)
        assert held.__name__ == "double"
    finally:
        change.undo()
    assert held(2, more=1) == 5


@pytest.mark.parametrize(("replacement", "expected"), [(twice, (35, 35)), (written, (35, int, 3))])
def test_a_function_that_closes_over_variables(
    replacement: Callable[..., Any], expected: tuple[Any, ...]
) -> None:
    times = closed_over(7)
    change = PatchGroup([CodePatch(times, replacement)])
    change.apply()
    assert times(5) == expected
    change.undo()
    assert times(5, 2) == 70


def test_a_generator_stays_one() -> None:
    def numbers(to: int) -> Iterator[int]:
        yield from range(to)

    def more(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(to: int) -> Iterator[int]:
            return (yield from original(to + 1))

        return run

    change = CodePatch(numbers, more)
    change.apply()  # Python 3.13 warns where a function gets code of another kind
    assert inspect.isgeneratorfunction(numbers)
    running = numbers(2)
    change.undo()
    assert [*running] == [0, 1, 2]
    assert [*numbers(2)] == [0, 1]


def test_who_changes_a_function_meanwhile_keeps_it() -> None:
    times, own = closed_over(7), closed_over(1)
    change = PatchGroup([CodePatch(times, twice)])
    change.apply()
    times.__code__ = own.__code__
    change.undo()
    assert times.__code__ is own.__code__


def test_who_changes_a_function_before_keeps_it_while_the_others_are_replaced() -> None:
    times, also = closed_over(7), closed_over(7)
    change = PatchGroup([CodePatch(each, twice) for each in (times, also)])
    times.__code__ = others = times.__code__.replace(co_name="others")
    change.apply()
    assert times.__code__ is others
    assert also(5) == (35, 35)
    change.undo()
    assert times.__code__ is others
    assert also(5) == 35


def test_code_sees_its_constants_and_nothing_of_where_they_were_named() -> None:
    change = CodePatch(
        double,
        lambda original: code_of(
            "def stand_in(number, more):\n return FACTOR", {"FACTOR": "constant"}
        ),
    )  # type: ignore[arg-type]
    change.apply()
    try:
        assert double(1, 2) == "constant"  # type: ignore[misc]
    finally:
        change.undo()


def test_attributes_of_a_module_at_the_cost_of_one_assignment() -> None:
    module: Any = types.ModuleType("somebodys")
    module.first, module.second, module.third = double, double, double
    change = PropertiesPatch(module, {"first": "instead", "second": "instead"})
    change.apply()
    assert (module.first, module.second, module.third) == ("instead", "instead", double)
    change.undo()
    assert (module.first, module.second) == (double, double)
    assert type(module) is types.ModuleType


@pytest.mark.parametrize("deleted", [False, True])
def test_names_that_somebody_changes_stay_in_a_group(deleted: bool) -> None:
    space = {"first": 1, "second": 2, "third": 3}
    change = PatchGroup(
        [NamesPatch(space, {"first": -1, "second": -2}), NamesPatch(space, {"third": -3})]
    )
    change.apply()
    assert space == {"first": -1, "second": -2, "third": -3}
    if deleted:
        del space["first"]
    else:
        space["first"] = 4
    change.undo()
    assert space == {"second": 2, "third": 3} | ({} if deleted else {"first": 4})
    change.apply()
    assert space == {"second": -2, "third": -3} | ({} if deleted else {"first": 4})
    change.undo()


def test_a_patch_that_raises_halfway_is_undone() -> None:
    class Failing:
        def apply(self) -> None:
            raise RuntimeError("no")

        def undo(self) -> None:
            pass

    space = {"first": 1}
    patches = Patches(lambda: [PatchGroup([NamesPatch(space, {"first": 2}), Failing()])])
    with pytest.raises(RuntimeError, match="no"):
        patches.acquire()
    assert space == {"first": 1}
    assert patches.open == 0
