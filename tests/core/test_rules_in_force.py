"""The key of what a compiler keeps for layers with rules."""

from __future__ import annotations

from typing import Any

from unamp.adapter.layers import RulesInForce


class Layer:
    pass


def test_the_same_layers_with_the_same_rules_have_the_same_key() -> None:
    rules, layer = RulesInForce(), Layer()
    region: Any = object()
    rules.put(layer, region)
    before = rules.key
    rules.put(layer, None)
    assert rules.key is None
    rules.put(layer, region)
    assert rules.key == before


def test_a_layer_that_comes_where_another_was_has_another_key() -> None:
    rules, layer = RulesInForce(), Layer()
    region: Any = object()
    rules.put(layer, region)
    before, place = rules.key, id(layer)
    del layer
    others = []
    while len(others) < 1000 and (not others or id(others[-1]) != place):  # CPython gives it the first one's memory
        others.append(Layer())
    rules.put(others[-1], region)
    assert rules.key != before
