"""Ways that are Python's alone: a decorated function, generator or coroutine, another thread.

They are the same for every framework, as are the two places of a way's region: inside the function
that the way runs, or around the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from unamp._function_types import Args, Function
from unamp.adapter.ways import OpenRegion, Way

#: Runs a function on some inputs in a way that knows of no region.
Runs = Callable[[Function, Args], Any]


def inside(function: Function, region: OpenRegion) -> Function:
    """Return a function that opens the region and calls another one inside."""

    def body(*inputs: Any) -> Any:
        with region():
            return function(*inputs)

    return body


def both(
    name: str,
    kind: str,
    runs: Runs,
    opens: Callable[[Function, OpenRegion], Function] = inside,
    **promised: Any,
) -> Iterator[Way]:
    """Yield two ways: the region is opened inside the function, or around the run.

    Args:
        name: the beginning of their names.
        kind: their kind.
        runs: runs a function on some inputs.
        opens: returns a function that opens the region and calls another one inside.
        promised: further fields of both.
    """
    for place, run in placed(runs, opens):
        yield Way(f"{name}, region {place}", kind, run, **promised)


def placed(
    runs: Function, opens: Callable[[Function, OpenRegion], Function] = inside
) -> Iterator[tuple[str, Function]]:
    """Yield the two places of a region, each with the function that takes a region and runs so.

    `both` has the arguments; `runs` may take more than the inputs.
    """

    def run_inside(function: Function, region: OpenRegion, *given: Any) -> Any:
        return runs(opens(function, region), *given)

    def run_around(function: Function, region: OpenRegion, *given: Any) -> Any:
        with region():
            return runs(function, *given)

    yield "inside", run_inside
    yield "around", run_around


def decorated(function: Function, region: OpenRegion, inputs: Args) -> object:
    """Call a function that the region decorates."""
    return region()(function)(*inputs)


def generator(function: Function, region: OpenRegion, inputs: Args) -> object:
    """Call a function in the second step of a generator that the region decorates."""

    def generate() -> Iterator[object]:
        yield None
        yield function(*inputs)

    return list(region()(generate)())[-1]


def coroutine(function: Function, region: OpenRegion, inputs: Args) -> object:
    """Call a function in a coroutine that the region decorates, after it has waited once."""

    async def compute() -> object:
        await asyncio.sleep(0)
        return function(*inputs)

    return asyncio.run(region()(compute)())


def in_a_thread(function: Function, region: OpenRegion, inputs: Args) -> object:
    """Call a function in another thread, where the region is opened."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(inside(function, region), *inputs).result()
