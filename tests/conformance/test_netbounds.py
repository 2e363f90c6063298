"""The reference is exact; its bounds hold on any machine and still tell the dtypes apart."""

import json
from itertools import islice

import numpy as np
import pytest
from unamp_conformance.check.netbounds import FILE, Reference
from unamp_conformance.check.netruns import run
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.reference import functions
from unamp_conformance.check.reference.operations import NumpyOperations
from unamp_conformance.check.rounding import round_to
from unamp_torch.conformance.operations import TorchOperations

from unamp.dtypes import LOW_DTYPES, PRECISIONS

KEPT = json.loads(FILE.read_text("utf-8"))


@pytest.fixture(params=NETWORKS)
def reference(request):
    return Reference(NETWORKS[request.param])


def rounding(dtype):
    """Return NumPy as a framework that rounds every result and cotangent to a dtype."""
    return NumpyOperations(lambda array: round_to(array, dtype))


def crossed(reference, observed, precision):
    bounds = reference.bounds(precision)
    return {
        entry: error / bounds[entry]
        for entry, error in reference.errors(observed).items()
        if not error <= bounds[entry]
    }


def test_it_is_what_torch_computes_in_float64(reference):
    errors = reference.errors(run(reference.network, TorchOperations(), dtype="float64"))
    assert {entry: error for entry, error in errors.items() if error > 1e-13} == {}


def test_what_is_kept_of_the_draws_is_not_stale(reference):
    """To renew the draws: `python -m unamp_conformance.check.draw_netbounds`; see what changed."""
    for precision, kept in KEPT["networks"][reference.network.name].items():
        drawn = list(islice(reference.draws(precision), KEPT["first"]))
        assert set(kept) == set(drawn[0])
        for entry, (first, farthest) in kept.items():
            assert max(errors[entry] for errors in drawn) == pytest.approx(first, rel=1e-6)
            assert farthest >= first


def test_there_are_bounds_for_every_network_and_precision():
    assert set(KEPT["networks"]) == set(NETWORKS)
    assert all(set(kept) == {"float32", *LOW_DTYPES} for kept in KEPT["networks"].values())


def sequential(a, b):
    """Return a product of matrices, added term after term in their own dtype.

    This is the worst order for the error of a sum.
    """
    return np.add.accumulate(a[..., :, :, None] * b[..., None, :, :], axis=-2, dtype=a.dtype)[
        ..., -1, :
    ]


@pytest.mark.parametrize("product", [functions.product, sequential])
def test_float32_is_within_its_bounds_in_whatever_order_sums_are_added_up(
    reference, product, monkeypatch
):
    _ = reference.exact
    monkeypatch.setattr(functions, "product", product)
    observed = run(reference.network, NumpyOperations(), dtype="float32")
    assert reference.errors(observed)["output"] > PRECISIONS["float64"].unit_roundoff
    assert crossed(reference, observed, "float32") == {}
    assert (
        max(
            error / reference.bounds("float32")[entry]
            for entry, error in reference.errors(observed).items()
        )
        < 0.25
    )


@pytest.mark.parametrize("dtype", LOW_DTYPES)
def test_a_low_dtype_is_within_its_own_bounds_and_beyond_those_of_float32(reference, dtype):
    observed = run(reference.network, rounding(dtype))
    assert crossed(reference, observed, dtype) == {}
    assert max(crossed(reference, observed, "float32").values()) > 20


def test_bfloat16_is_beyond_the_bounds_of_float16(reference):
    assert crossed(reference, run(reference.network, rounding("bfloat16")), "float16")


@pytest.mark.parametrize("dtype", ["float32", *LOW_DTYPES])
def test_what_symmetries_keep_at_nothing_has_room_for_roundings(dtype):
    """A softmax ignores its input's mean.

    So the gradient of a key's bias is zero, until a row's sum is rounded.
    """
    bound = Reference(NETWORKS["transformer"]).bounds(dtype)["gradient of bk"]
    assert bound > 8 * PRECISIONS[dtype].unit_roundoff


def test_a_running_variance_may_be_a_samples_or_a_populations():
    reference = Reference(NETWORKS["residual"])
    for unbiased in (False, True):
        observed = run(reference.network, NumpyOperations(unbiased=unbiased), dtype="float64")
        assert (
            max(
                error
                for entry, error in reference.errors(observed).items()
                if entry.startswith("buffer")
            )
            == 0.0
        )


def test_what_no_network_asks_for_is_refused():
    operations = NumpyOperations()
    with pytest.raises(KeyError):
        operations["erf"]
    array = operations.tensor(np.ones((2, 3, 4, 4)))
    buffers = [operations.buffer(np.ones(3)) for _ in range(2)]
    parameters = [operations.tensor(np.ones(3)) for _ in range(2)]
    with pytest.raises(NotImplementedError, match="running statistics"):
        operations["batch_norm"](array, *buffers, *parameters, training=False, momentum=0.1)
