"""Ways that are Python's alone: a decorated function, generator or coroutine, another thread.

They are the same for every framework.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from unamp._function_types import Args, Function
from unamp.adapter.ways import OpenRegion


def inside(function: Function, region: OpenRegion) -> Function:
    """Return a function that opens the region and calls another one inside."""

    def body(*inputs: Any) -> Any:
        with region():
            return function(*inputs)

    return body


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
