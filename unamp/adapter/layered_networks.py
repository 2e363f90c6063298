"""A network with layers, as an adapter gives one to conformance to check rules for layers.

A framework's `Operations` that has a method ``layered()`` returns a `LayeredNetworks`; without the
method rules for layers are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unamp._function_types import Function
from unamp.adapter.framework_types import Tensor
from unamp.policy import Policy

if TYPE_CHECKING:
    import numpy as np

#: The ways in which a network with rules is run.
LAYER_WAYS = ("eager", "compiled", "exported")

#: Takes the maker of a region, and the input; returns the network's two results. It is called with
#: no policy in force.
Runner = Callable[[Callable[[], AbstractContextManager[object]], Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class LayeredNetworks:
    """A network of one framework, and how it is run.

    Attributes:
        network: makes the network from two weights, arrays of shape (out, in), and the name of its
            device. Its layer ``block`` holds two linear layers without a bias, ``first`` and
            ``second``; layer and network return the results of both for the input.
        ways: for each name of `LAYER_WAYS`, the maker of a `Runner` for a network, or the reason
            why there is none. A runner is called again after rules were put on and taken off, and
            keeps what it compiled, as far as the framework allows.
        refused: returns why a network with a rule cannot run, or an empty string where it can,
            given the way, the policy, and whether results go back to low.
    """

    network: Callable[[Sequence[np.ndarray], str], Function]
    ways: Mapping[str, Callable[[Any], Runner] | str]
    refused: Callable[[str, Policy, bool], str] = lambda way, policy, narrowed: ""


def eager(network: Function) -> Runner:
    """Return the runner that calls a network in a region, be it compiled or not."""

    def run(region: Callable[[], AbstractContextManager[object]], x: Tensor) -> Any:
        with region():
            return network(x)

    return run
