"""Distributions, bijectors and special functions of tensorflow-probability in a region."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as library
from unamp_tensorflow import distributions

import unamp
from unamp import Policy, policy_region
from unamp.adapter.replacing import CodePatch

D, B = library.distributions, library.bijectors


def float32(number):
    return tf.constant([number, 2.0 * number])


CASES = {
    "cdf": lambda: D.Normal(float32(0.0), 1.0).cdf(3.25),
    "kl": lambda: D.kl_divergence(D.Cauchy(float32(1.0), 1.0), D.Cauchy(1.25, 1.0)),
    "draw": lambda: D.Gamma(float32(1.5), 2.0).sample(5, seed=[1, 2]),
    "made": lambda: D.MultivariateNormalFullCovariance(
        tf.zeros(2), tf.constant([[1.0, 0.3], [0.3, 1.7]])
    ).log_prob(float32(0.3)),
    "components": lambda: D.MixtureSameFamily(
        D.Categorical(logits=float32(0.3)), D.Normal(float32(0.7), 1.0)
    ).log_prob(0.3),
    "transform": lambda: B.Softplus().inverse_log_det_jacobian(float32(1e-3)),
    "special": lambda: library.math.igammainv(float32(1.5), 0.3),
}


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_they_compute_as_outside(name, graph, low):
    run = tf.function(CASES[name]) if graph else CASES[name]
    expected = run()
    with policy_region(Policy("O2", low.name)):
        found = run()
    assert found.dtype == tf.float32
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", ["O1", "O2", "O3"])
def test_low_parameters_and_values_become_float32(level, low):
    wide = float32(0.3)
    given = tf.cast(wide, low)
    expected = D.Gamma(tf.cast(given, tf.float32), wide).log_prob(tf.cast(given, tf.float32))
    with policy_region(Policy(level, low.name)):
        made = D.Gamma(given, wide)
        found = made.log_prob(given)
        alone = D.Gamma(given, given)
        root = library.math.softplus_inverse(given)
    assert made.dtype == alone.dtype == found.dtype == root.dtype == tf.float32
    tf.debugging.assert_near(found, expected, rtol=1e-6)


def test_a_low_variable_stays_a_parameter(low):
    variable = tf.Variable(tf.cast(float32(0.3), low))
    with policy_region(Policy("O2", low.name)):
        made = D.Normal(variable, tf.cast(1.0, low))
    assert made.trainable_variables == (variable,)


def test_what_a_user_wrote_follows_the_policy(low):
    seen = []

    def network(x):
        seen.append(tf.matmul(tf.ones([2, 2]), tf.ones([2, 2])).dtype)
        return x

    class Mine(D.Normal):
        def _log_prob(self, value):
            return network(super()._log_prob(value))

    inline = B.Inline(
        forward_fn=network,
        inverse_fn=network,
        inverse_log_det_jacobian_fn=network,
        forward_min_event_ndims=0,
    )
    with policy_region(Policy("O2", low.name)):
        Mine(0.0, 1.0).log_prob(0.3)
        D.Independent(Mine(float32(0.0), 1.0), 1).log_prob(float32(0.3))
        B.Chain([B.Softplus(), inline]).forward(float32(0.3))
        D.JointDistributionNamed(
            {"a": D.Normal(0.0, 1.0), "b": lambda a: D.Normal(network(a), 1.0)}
        ).sample(seed=[1, 2])
    assert len(seen) > 3
    assert set(seen) == {low}


def test_nothing_stays_in_the_library(low):
    function, makes = D.Distribution.log_prob, type(D.Normal)
    code = function.__code__
    with policy_region(Policy("O2", low.name)):
        assert function.__code__ is not code
        with unamp.autocast(enabled=False), unamp.trace():
            assert D.Normal(tf.cast(0.0, low), tf.cast(1.0, low)).dtype == low
    assert function.__code__ is code
    assert "__call__" not in vars(makes)
    assert D.Normal(tf.cast(0.0, low), tf.cast(1.0, low)).dtype == low
    patches = distributions.patches(distributions.imported()).patches
    assert not any(each.applied for each in patches if isinstance(each, CodePatch))
