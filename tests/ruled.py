"""The promises of rules for layers, on every framework.

Each framework's folder tests them on its own networks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import unamp
from unamp import LayerRules, Policy

LOW = Policy("O3", "bfloat16")
F32, BF16 = "float32", "bfloat16"
RULE = {"**.wo": "float32"}
EXPECTED = [BF16, F32, BF16, F32]


def share(network: Any) -> None:
    """Make the second block call the first one's `wo`."""
    network.blocks[1].wo = network.blocks[0].wo


class Layers(NamedTuple):
    """A framework's network of two blocks, and functions for it.

    Each block returns `wi(x)` and `wo(x)`.

    Attributes:
        network: makes the network, already called once.
        x: the network's input.
        dtype: returns the name of a tensor's dtype.
        numbers: returns a tensor as a NumPy array.
        first, second: the names of the blocks.
        low: casts a tensor to bfloat16.
        losses: trains a network whose `wo` overflows in float16, for four steps in float16 under
            rules; returns the losses.
        share: makes the second block call the first one's `wo`.
    """

    network: Callable[[], Any]
    x: Any
    dtype: Callable[[Any], str]
    numbers: Callable[[Any], Any]
    first: str
    second: str
    low: Callable[[Any], Any]
    losses: Callable[[Any], list[float]]
    share: Callable[[Any], None] = share

    def dtypes(self, run: Callable[..., Any], *, region: bool = True) -> list[str]:
        """Return the dtypes of the four results, in a bfloat16 region or without one."""
        if not region:
            return [self.dtype(result) for result in run(self.x)]
        with unamp.autocast(dtype=BF16):
            return [self.dtype(result) for result in run(self.x)]


def holds_until_it_is_removed(of: Layers) -> None:
    network = of.network()
    kind = type(network)
    assert of.dtypes(network) == [BF16] * 4
    rules = unamp.layer_policies(network, RULE)
    assert dict(rules.layers) == {f"{of.first}.wo": F32, f"{of.second}.wo": F32}
    assert of.dtypes(network) == EXPECTED
    assert of.dtypes(network, region=False) == [F32] * 4
    rules.remove()
    rules.remove()
    assert of.dtypes(network) == [BF16] * 4
    with unamp.layer_policies(network, {f"{of.first}.wi": LOW}):
        assert of.dtypes(network, region=False) == [BF16, F32, F32, F32]
    assert type(network) is kind


def numbers_are_those_of_float32(of: Layers) -> None:
    network = of.network()
    exact = [of.numbers(result) for result in network(of.x)]
    with unamp.layer_policies(network, {"**": F32}), unamp.autocast(dtype=BF16):
        assert all(
            np.array_equal(of.numbers(result), other)
            for result, other in zip(network(of.x), exact, strict=True)
        )


def inner_rules_stand_inside_outer_ones(of: Layers) -> None:
    network = of.network()
    rules = unamp.layer_policies(network, {of.first: F32, of.second: F32, f"{of.first}.wi": LOW})
    assert of.dtypes(network) == [BF16, F32, F32, F32]
    inner = unamp.layer_policies(network, {f"{of.second}.wo": LOW})
    assert of.dtypes(network) == [BF16, F32, F32, BF16]
    rules.remove()  # rules that were put on later stay
    assert of.dtypes(network) == [BF16] * 4
    with unamp.layer_policies(network, {f"{of.second}.wo": F32}):
        inner.remove()
        assert of.dtypes(network) == [BF16, BF16, BF16, F32]
    assert of.dtypes(network, region=False) == [F32] * 4


def the_last_pattern_counts_for_shared_layers(of: Layers) -> None:
    network = of.network()
    of.share(network)
    first, second = f"{of.first}.wo", f"{of.second}.wo"
    with unamp.layer_policies(network, {first: LOW, second: F32}) as rules:
        assert dict(rules.layers) == {first: F32, second: F32}
        assert of.dtypes(network) == EXPECTED


def results_go_back_to_low(of: Layers) -> None:
    network = of.network()
    with unamp.layer_policies(network, RULE, result="low"):
        assert of.dtypes(network) == [BF16] * 4
        assert of.dtypes(network, region=False) == [F32] * 4  # no region is open
        with unamp.autocast(dtype="float16"):
            assert of.dtype(network(of.x)[1]) == "float16"
    with unamp.layer_policies(network, LayerRules(RULE, result="low")):
        assert of.dtypes(network) == [BF16] * 4


def low_inputs_are_widened(of: Layers) -> None:
    """Check that a layer's float32 rule is not a region that is off.

    In such a region low inputs would meet float32 parameters, and raise.
    """
    network = of.network()
    low = of.low(of.x)
    with unamp.layer_policies(network, {"**.wi": F32, "**.wo": F32}):
        assert [of.dtype(result) for result in network(low)] == [F32] * 4


def a_rule_covers_what_the_layer_calls(of: Layers) -> None:
    network = of.network()
    with unamp.layer_policies(network, {of.first: F32}), unamp.trace() as trace:
        assert of.dtypes(network) == [F32, F32, BF16, BF16]
    found = {
        (record.layer.split(".", 1)[1], record.compute)
        for record in trace.records
        if record.layer and record.op == "linear"
    }
    assert found == {
        (f"{block}.{name}", dtype)
        for block, dtype in ((of.first, F32), (of.second, BF16))
        for name in ("wi", "wo")
    }  # patterns match the names in a trace


def regions_are_closed_after_an_error(of: Layers) -> None:
    network = of.network()
    with unamp.layer_policies(network, {"**": F32}):
        with pytest.raises(Exception, match="."):
            network(None)
        assert unamp.current_policy() is None


def silence_is_an_error(of: Layers) -> None:
    network = of.network()
    name = type(network).__name__
    for pattern, says in (
        ("**.w0", "did you mean"),
        (f"{name}.{of.first}.wo", f"leave the network's own name out, '{of.first}.wo'"),
        (":Lineer", "no layer of"),
    ):
        with pytest.raises(ValueError, match=says):
            unamp.layer_policies(network, {"**.wo": F32, pattern: F32})
    assert of.dtypes(network) == [BF16] * 4  # nothing was changed
    with pytest.raises(ValueError, match="there is no rule"):
        unamp.layer_policies(network, {})
    with pytest.raises(TypeError, match="network must be a"):
        unamp.layer_policies(object(), RULE)


def a_product_that_overflows_trains(of: Layers) -> None:
    """Check T5's `wo`: 66246 exceeds float16's largest number."""
    assert not all(map(math.isfinite, of.losses(None)))
    losses = of.losses({"**.wo": F32})
    assert all(map(math.isfinite, losses))
    assert losses[-1] < losses[0]


#: All promises, for `pytest.mark.parametrize`.
PROMISES = (
    holds_until_it_is_removed,
    numbers_are_those_of_float32,
    inner_rules_stand_inside_outer_ones,
    the_last_pattern_counts_for_shared_layers,
    results_go_back_to_low,
    low_inputs_are_widened,
    a_rule_covers_what_the_layer_calls,
    regions_are_closed_after_an_error,
    silence_is_an_error,
    a_product_that_overflows_trains,
)


@pytest.mark.parametrize("promise", PROMISES)
def test_promises(request: pytest.FixtureRequest, promise: Callable[[Layers], None]) -> None:
    """Check one promise; the folder's module has the network as `OF`."""
    promise(request.module.OF)
