"""The suite's networks have the same numbers on every machine."""

import zlib

import pytest
from pretenders import Pretender, honest
from unamp_conformance.check.netchecks import misjudged
from unamp_conformance.check.netruns import run
from unamp_conformance.check.networks import NETWORKS

from unamp.adapter import OpRecord
from unamp.policy import Policy, Rule


@pytest.mark.parametrize("name", NETWORKS)
def test_parameters_and_data_are_the_same_to_the_bit(name):
    network = NETWORKS[name]
    for make in (network.parameters, network.inputs, network.statistics):
        first, second = make(), make()
        assert {n: a.tobytes() for n, a in first.items()} == {
            n: a.tobytes() for n, a in second.items()
        }


def test_the_numbers_have_not_moved():
    found = {
        name: zlib.crc32(b"".join(a.tobytes() for a in n.parameters().values()))
        for name, n in NETWORKS.items()
    }
    assert found["mlp"] == MLP


MLP = 3298821256


@pytest.mark.parametrize("name", NETWORKS)
def test_every_parameter_has_a_gradient(name):
    assert set(run(NETWORKS[name], Pretender(honest)).gradients) == set(NETWORKS[name].shapes)


def test_an_emulated_operation_without_a_floating_result_computed_in_the_low_dtype():
    for rule, wrong in ((Rule.LOW, None), (Rule.FP32, ("argmax", "float32", "float16"))):
        record = OpRecord("argmax", "argmax", rule, ("float32",), "float32", None, emulated=True)
        found = misjudged(Policy(dtype="float16"), rule, record)
        assert (found and found[1:]) == wrong
