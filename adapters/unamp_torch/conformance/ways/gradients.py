"""Functions that are computed again for their gradients, or transformed by `torch.func`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import both, inside
from unamp_torch.conformance.ways.opening import Weighed, floating, with_leaves


def _grad(
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    places: Sequence[int],
    *,
    around: bool,
) -> tuple[Any, Sequence[Any]]:
    differentiated = torch.func.grad_and_value(
        function if around else inside(function, region), tuple(places)
    )
    with region() if around else nullcontext():
        gradients, value = differentiated(*inputs)
    return value, gradients


def _vjp(
    function: Function, region: OpenRegion, inputs: Sequence[Any], places: Sequence[int]
) -> tuple[Any, Sequence[Any]]:
    def of_leaves(*leaves: Any) -> Any:
        with region():
            return function(*with_leaves(inputs, places, leaves))

    found: Any = torch.func.vjp(of_leaves, *(inputs[place] for place in places))
    value, back = found
    return value, back(torch.ones_like(value))


def _reentrant(
    function: Function,
    region: OpenRegion,
    inputs: Sequence[Any],
    places: Sequence[int],
    *,
    around: bool,
) -> tuple[Any, Sequence[Any]]:
    """Checkpoint with `backward`, as reentrant checkpointing refuses `torch.autograd.grad`."""
    leaves = [inputs[place].detach().requires_grad_() for place in places]
    given = with_leaves(inputs, places, leaves)
    called = function if around else inside(function, region)
    with region() if around else nullcontext():
        value = checkpoint(called, *given, use_reentrant=True)
    value.backward()
    return value.detach(), [leaf.grad for leaf in leaves]


def _vmap(function: Function, inputs: Sequence[Any]) -> Any:
    return torch.vmap(function)(*(tensor.unsqueeze(0) for tensor in inputs))[0]


def _jvp(function: Function, inputs: Sequence[Any]) -> Any:
    places = floating(inputs)
    primals = tuple(inputs[place] for place in places)
    return torch.func.jvp(
        lambda *leaves: function(*with_leaves(inputs, places, leaves)),
        primals,
        tuple(map(torch.ones_like, primals)),
    )[0]


def _functional_call(function: Function, inputs: Sequence[Any]) -> Any:
    network = Weighed(function, inputs, floating(inputs))
    return torch.func.functional_call(
        network, {f"p{place}": inputs[place] for place in network.places}, tuple(inputs)
    )


def _recomputed(function: Function, inputs: Sequence[Any]) -> Any:
    return checkpoint(function, *inputs, use_reentrant=False)


def _both_places(name: str, kind: str, runs: Function, **promised: Any) -> Iterator[Way]:
    """Yield two ways that compute gradients themselves: the region inside, and around the whole."""
    for where in ("inside", "around"):
        run = partial(runs, around=where == "around")
        yield Way(f"{name}, region {where}", kind, value_and_grad=run, **promised)


WAYS = (
    *both("checkpoint", "recomputed", _recomputed),
    *_both_places("checkpoint, reentrant", "recomputed", _reentrant),
    *_both_places("func.grad", "transformed", _grad, equal="bound"),
    Way("func.vjp", "transformed", value_and_grad=_vjp, equal="bound"),
    *both(
        "vmap",
        "transformed",
        _vmap,
        equal="bound",
        upstream={"lstm": "it has no batching rule for LSTM"},
    ),
    *both(
        "func.jvp",
        "transformed",
        _jvp,
        gradients=False,
        upstream={"lstm": "it has no forward gradient of LSTM on the CPU"},
    ),
    *both("functional_call", "transformed", _functional_call),
)
