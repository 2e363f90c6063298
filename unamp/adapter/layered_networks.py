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

#: Given what makes a region, and the input, returns the network's two results; nothing is in force
#: when it is called.
Runner = Callable[[Callable[[], AbstractContextManager[object]], Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class LayeredNetworks:
    """A network of one framework, and how it is run.

    Attributes:
        network: makes the network of two weights, each (out, in), as arrays, and of the name of the
            device that it lives on: a layer ``block`` that holds two linear layers without a bias,
            ``first`` and ``second``, and returns what both make of its input: its own results, too.
        ways: by the names of `LAYER_WAYS`, what makes a `Runner` of a network, or the reason why
            there is none. A runner is called again after rules were put on and taken off; what it
            compiled stays, as far as the framework lets it.
        refused: why a network with a rule cannot run in a way under a policy, empty where it can:
            given the way, the dtype, and whether results go back to low.
    """

    network: Callable[[Sequence[np.ndarray], str], Function]
    ways: Mapping[str, Callable[[Any], Runner] | str]
    refused: Callable[[str, Policy, bool], str] = lambda way, policy, narrowed: ""


def eager(network: Function) -> Runner:
    """Return the runner of a network that is called in a region: eagerly, or as it is compiled."""

    def run(region: Callable[[], AbstractContextManager[object]], x: Tensor) -> Any:
        with region():
            return network(x)

    return run
