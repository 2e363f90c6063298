"""The networks: the same on every machine, and their bounds tight enough to tell dtypes apart."""

import zlib

import numpy as np
import pytest
from pretenders import Pretender, honest
from unamp_conformance.netruns import Reference, run
from unamp_conformance.networks import NETWORKS, Network
from unamp_conformance.rounding import round_to


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_data_are_the_same_to_the_bit(name):
    network = NETWORKS[name]
    for make in (network.parameters, network.inputs, network.statistics):
        first, second = make(), make()
        assert {n: a.tobytes() for n, a in first.items()} == {n: a.tobytes() for n, a in second.items()}


def test_the_numbers_have_not_moved():
    found = {name: zlib.crc32(b"".join(a.tobytes() for a in n.parameters().values())) for name, n in NETWORKS.items()}
    assert found["mlp"] == MLP


MLP = 3298821256


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_a_gradient_and_float32_is_within_its_bound(name):
    operations = Pretender(honest)
    reference = Reference(NETWORKS[name], operations)
    observed = run(NETWORKS[name], operations)
    assert set(observed.gradients) == set(NETWORKS[name].shapes)
    bounds = reference.bounds("float32")
    assert {n: e for n, e in reference.errors(observed).items() if e > bounds[n]} == {}


@pytest.mark.parametrize("name", ["mlp", "transformer", "unet"])
def test_bounds_tell_the_dtypes_apart(name):
    """What bfloat16 does to parameters and data alone is already more than float16's bound allows."""
    network: Network = NETWORKS[name]
    operations = Pretender(honest)
    reference = Reference(network, operations)
    rounded = run(network, operations, dtype="float64", perturb=lambda a: round_to(a, "bfloat16"))
    errors = reference.errors(rounded)
    assert errors["output"] < reference.bounds("bfloat16")["output"]
    assert errors["output"] > reference.bounds("float16")["output"] / 3
    assert np.isfinite(list(errors.values())).all()
