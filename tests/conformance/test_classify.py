"""The judge of a result's precision is right about numbers made by hand."""

import ml_dtypes
import numpy as np
import pytest
from unamp_conformance.check import arrays
from unamp_conformance.check.classify import LOW, Prediction, explain, tells
from unamp_conformance.check.rounding import on_grid, round_to, spacing

TYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def factors():
    return [arrays.make("normal 48", "test", n).astype(np.float64) for n in range(2)]


@pytest.fixture
def products(factors):
    a, b = factors
    values = {p: round_to(a, p) * round_to(b, p) for p in TYPES}
    return Prediction(values, 2.0**-22 * np.abs(values["float32"]))


def computed(factors, precision):
    a, b = (f.astype(np.float32).astype(TYPES[precision]) for f in factors)
    return (a * b).astype(np.float64)


@pytest.mark.parametrize("precision", TYPES)
def test_it_knows_a_product_by_its_numbers(factors, products, precision):
    assert explain(computed(factors, precision), products) == ({precision}, "")


@pytest.mark.parametrize("low", LOW)
def test_a_relabelled_result_is_no_low_computation(factors, products, low):
    precisions, note = explain(round_to(computed(factors, "float32"), low), products)
    assert low not in precisions
    assert note == f"computed in float32; only the result was rounded to {low}"


@pytest.mark.parametrize("low", LOW)
def test_rounded_inputs_alone_are_no_low_computation(products, low):
    precisions, note = explain(products.values[low], products)
    assert precisions == frozenset()
    assert note == f"inputs were rounded to {low}, but the result was not"


def test_the_other_low_dtype_is_not_mistaken_for_it(factors, products):
    assert (
        "bfloat16" not in explain(round_to(computed(factors, "float16"), "bfloat16"), products)[0]
    )


def test_a_single_forgotten_element_shows(factors, products):
    values = computed(factors, "bfloat16")
    values[7] = computed(factors, "float32")[7]
    assert "bfloat16" not in explain(values, products)[0]


def test_nonsense_is_nothing(products):
    precisions, note = explain(np.full(48, 0.123456789), products)
    assert precisions == frozenset()
    assert "consistent with no precision" in note


def test_not_a_number_is_nothing(products):
    assert explain(np.full(48, np.nan), products)[0] == frozenset()


def test_good_inputs_tell_and_dull_ones_do_not(factors, products):
    assert tells(products, computed(factors, "float32"))
    ones = Prediction({p: np.ones(48) for p in TYPES}, np.full(48, 1e-7))
    assert not tells(ones, np.ones(48))


def test_truth_values_must_agree_exactly():
    prediction = Prediction(
        {
            "float32": np.array([0.0, 1.0, 1.0]),
            "bfloat16": np.zeros(3),
            "float16": np.array([0.0, 0.0, 1.0]),
        },
        np.zeros(3),
        exact=True,
    )
    assert explain(np.array([0.0, 0.0, 1.0]), prediction)[0] == {"float16"}
    assert explain(np.array([1.0, 0.0, 1.0]), prediction)[0] == frozenset()


@pytest.mark.parametrize(("low", "digits"), [("float16", 10), ("bfloat16", 7)])
def test_grids(low, digits):
    step = 2.0**-digits
    assert spacing(np.array([1.0, 1.9, 2.0]), low).tolist() == [step, step, 2 * step]
    assert on_grid(np.array([1.0 + step, np.inf]), low)
    assert not on_grid(np.array([1.0 + step / 2]), low)


@pytest.mark.parametrize("low", LOW)
def test_inputs_change_by_nearly_as_much_as_rounding_can(low):
    values = arrays.make("normal 1000", "test", 0).astype(np.float64)
    moved = np.abs(round_to(values, low) - values) / spacing(values, low)
    assert moved.min() > 0.36
    assert moved.max() <= 0.5


def test_rounding_to_bfloat16_is_that_of_ml_dtypes():
    bits = np.random.default_rng(0).integers(0, 2**32, 200_000, dtype=np.uint32)
    values = np.concatenate(
        [bits.view(np.float32), np.array([np.inf, -np.inf, 3.4028235e38, 1e-45, -0.0], np.float32)]
    )
    with np.errstate(all="ignore"):
        expected = values.astype(ml_dtypes.bfloat16).astype(np.float32)
    assert np.array_equal(round_to(values, "bfloat16"), expected, equal_nan=True)
