"""Losses of Keras on PyTorch: see `keras_losses`."""

from __future__ import annotations

import keras_losses as shared


def test_a_loss_counts_more_numbers_than_float16_holds() -> None:
    shared.a_loss_counts_more_numbers_than_float16_holds()


def test_losses_of_fit_are_added_up_in_float32() -> None:
    shared.losses_of_fit_are_added_up_in_float32()


def test_a_policy_is_in_force_again_after_a_loss_that_raises() -> None:
    shared.a_policy_is_in_force_again_after_a_loss_that_raises()
