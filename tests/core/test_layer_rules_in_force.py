"""The key for a compiler's caches tells rules of layers apart; a dead layer has no rule."""

from __future__ import annotations

import gc
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from unamp import Policy
from unamp.adapter.layers import RulesInForce


class Layer:
    pass


class Rule:
    """A `LayerRegion` that only differs from other instances."""

    rule: Policy | str = "float32"
    result: str | None = None

    def policy(self, dtype: str | None = None) -> Policy:
        return Policy()

    def here(self) -> AbstractContextManager[Any]:
        return nullcontext()

    def finished(self, result: Any, args: Any, kwargs: Any) -> Any:
        return result


def test_the_same_rules_are_one_key() -> None:
    rules, layer, other, rule = RulesInForce(), Layer(), Layer(), Rule()
    assert not rules.used
    rules.put(layer, rule)
    first = rules.key
    rules.put(other, rule)
    assert first != rules.key
    rules.put(other, None)
    assert rules.key == first is not None
    rules.put(layer, None)
    assert rules.key is None
    assert rules.used


def test_a_layer_that_is_gone_has_no_rule() -> None:
    rules, kept, rule = RulesInForce(), Layer(), Rule()
    rules.put(kept, rule)
    only = rules.key
    for _ in range(3):  # perhaps at the same address each time
        layer = Layer()
        assert rules.key == only
        rules.put(layer, rule)
        assert rules.key != only
        del layer
        gc.collect()
    assert rules.key == only
