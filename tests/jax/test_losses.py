"""Losses of Keras on JAX keep the promises of `keras_losses`; optax's are computed in float32."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from keras_losses import *  # noqa: F403

import unamp

#: Scores that float16 has; it does not have all of their products.
SCORES = jnp.round(100 * jax.random.normal(jax.random.key(0), (8, 10)))
LABELS = jnp.arange(8)
FRACTIONS = jax.nn.one_hot(LABELS, 10)
LOGS = SCORES / 4
LOSSES = {
    "binary_dice_loss": (SCORES, FRACTIONS),
    "convex_kl_divergence": (LOGS, FRACTIONS),
    "cosine_distance": (SCORES, SCORES[::-1]),
    "dice_loss": (SCORES, FRACTIONS),
    "generalized_kl_divergence": (LOGS, FRACTIONS),
    "kl_divergence_with_log_targets": (LOGS, LOGS[::-1] / 512),
    "multiclass_generalized_dice_loss": (SCORES, FRACTIONS),
    "multiclass_hinge_loss": (SCORES, LABELS),
    "multiclass_perceptron_loss": (SCORES, LABELS),
    "multiclass_sparsemax_loss": (SCORES, LABELS),
    "ntxent": (SCORES, LABELS // 2),
    "perceptron_loss": (SCORES, FRACTIONS),
    "poly_loss_cross_entropy": (SCORES, FRACTIONS),
    "ranking_softmax_loss": (SCORES, FRACTIONS),
    "sparsemax_loss": (SCORES, FRACTIONS),
}


@pytest.mark.parametrize("level", ["O1", "O2"])
@pytest.mark.parametrize("name", LOSSES)
def test_a_loss_of_optaxs_is_computed_in_float32(name, level):
    loss, given = getattr(optax.losses, name), LOSSES[name]
    with unamp.autocast(level=level, dtype="float16"):
        found = loss(*given)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, loss(*given))
