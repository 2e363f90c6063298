"""`unamp.tune` on a network of JAX, whose layers have rules."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import unamp


class _Net(eqx.Module):
    a: eqx.nn.Linear
    b: eqx.nn.Linear
    norm: eqx.nn.LayerNorm

    def __call__(self, x: Any) -> Any:
        return jax.vmap(lambda row: self.norm(self.b(self.a(row))))(x)


@pytest.mark.parametrize("by", ["place", "layer", "operation"])
def test_a_product_that_overflows_is_found(by: Any) -> None:
    keys = jax.random.split(jax.random.key(0), 6)
    net = _Net(eqx.nn.Linear(8, 8, key=keys[0]), eqx.nn.Linear(8, 8, key=keys[1]), eqx.nn.LayerNorm(8))
    net = eqx.tree_at(lambda made: made.b.weight, net, net.b.weight * 1e6)  # its product is beyond float16
    batches = [jax.random.normal(key, (4, 8)) for key in keys[2:]]
    tuned = unamp.tune(net, net, batches, dtype="float16", tolerance=1e-2, by=by)
    held = {(place.layer, place.op) for place in tuned.report.held}
    assert {("b", "linear"), ("norm", "layer_norm")} <= held
    assert (("a", "linear") in held) is (by == "operation")
    exact = net(batches[0])
    with tuned.region(net):
        found = net(batches[0])
    assert np.linalg.norm(np.float64(found) - np.float64(exact)) <= 1e-2 * np.linalg.norm(np.float64(exact))
