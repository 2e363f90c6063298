"""float32 that a layer of Keras states on JAX: see `keras_float32`."""

from __future__ import annotations

import jax
import keras_float32 as shared


def test_stated_float32_follows_the_region_and_says_so() -> None:
    shared.stated_float32_follows_the_region_and_says_so()


def test_a_layer_that_states_nothing_is_not_named() -> None:
    shared.a_layer_that_states_nothing_is_not_named()


def test_beside_a_mixed_global_policy_float32_was_stated_by_somebody() -> None:
    shared.beside_a_mixed_global_policy_float32_was_stated_by_somebody()


def test_a_class_of_ones_own_keeps_float32() -> None:
    shared.a_class_of_ones_own_keeps_float32(jax.jit)
