"""The study of float8 computes ml_dtypes' numbers, and its results can be exported.

Wrong arguments are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import unamp
from unamp import OpRecord, Rule, trace
from unamp.adapter.float8 import (
    Arithmetic,
    contracted,
    dequantized,
    format_of,
    rounded,
    with_factors,
)
from unamp.adapter.records import Shadow
from unamp.adapter.shadowing import NO_PRODUCT, PRODUCTS, LeftOut, shadow
from unamp.dtypes import FLOAT8, shadow_dtype
from unamp.tuning import Float8Layer, Float8Study
from unamp.vocabulary import vocabulary

TYPES = {"float8_e4m3": ml_dtypes.float8_e4m3fn, "float8_e5m2": ml_dtypes.float8_e5m2}
NUMPY = Arithmetic(
    np.where, lambda x, axes: np.max(x, axis=None if axes is None else tuple(axes), keepdims=True)
)


def bits(x: np.ndarray) -> np.ndarray:
    assert x.dtype == np.float32
    return x.view(np.int32)


def grid(dtype: str) -> np.ndarray:
    """Return every finite number of a format."""
    every = np.arange(256, dtype=np.uint8).view(TYPES[dtype]).astype(np.float32)
    return every[np.isfinite(every)]


# --- numbers --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", TYPES)
def test_every_number_and_every_half_between_two_is_rounded_as_ml_dtypes_does(dtype: str) -> None:
    numbers = grid(dtype)
    assert len(numbers) == {"float8_e4m3": 254, "float8_e5m2": 248}[dtype]
    inside = np.sort(numbers)
    halves = ((inside[1:].astype(np.float64) + inside[:-1]) / 2).astype(np.float32)
    beside = [np.nextafter(halves, np.float32(side)) for side in (-np.inf, np.inf)]
    x = np.concatenate([numbers, halves, *beside, np.array([1e-45, -1e-45, 1e-30], np.float32)])
    assert (
        bits(rounded(x, format_of(dtype)[0], np.where))
        == bits(x.astype(TYPES[dtype]).astype(np.float32))
    ).all()


@pytest.mark.parametrize("dtype", TYPES)
def test_numbers_of_all_sizes_are_rounded_as_ml_dtypes_does(dtype: str) -> None:
    form, drawn = format_of(dtype)[0], np.random.default_rng(0)
    x = (drawn.standard_normal(100_000) * np.exp(drawn.uniform(-16, 10, 100_000))).astype(
        np.float32
    )
    x = x.clip(-form.largest, form.largest)
    assert (
        bits(rounded(x, form, np.where)) == bits(x.astype(TYPES[dtype]).astype(np.float32))
    ).all()


def test_what_is_too_large_is_the_largest_and_what_is_not_finite_is_nan() -> None:
    x = np.array([500.0, -1e30, np.nan, np.inf], np.float32)
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(
            rounded(x, format_of("float8_e4m3")[0], np.where),
            np.float32([448, -448, np.nan, np.nan]),
        )


@pytest.mark.parametrize("axes", [None, (0,), (-1,)])
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e30])
def test_a_tensor_is_scaled_to_the_largest(axes: Sequence[int] | None, scale: float) -> None:
    x = (np.random.default_rng(1).standard_normal((8, 16)) * scale).astype(np.float32)
    with np.errstate(divide="ignore"):
        found = dequantized(x, format_of("float8_e4m3")[0], axes, NUMPY)
    factor = (
        np.float64(448.0) / np.maximum(NUMPY.amax(abs(x), axes).astype(np.float64), 1e-12)
    ).astype(np.float32)
    want = (
        np.clip(x * factor, -448.0, 448.0).astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
        / factor
    )
    assert (bits(found) == bits(want)).all()


def test_zeros_stay_zeros() -> None:
    with np.errstate(divide="ignore"):
        assert not dequantized(
            np.zeros((2, 3), np.float32), format_of("float8_e5m2")[0], (-1,), NUMPY
        ).any()


# --- products -------------------------------------------------------------------------------------


def test_products_are_those_of_the_vocabulary() -> None:
    assert {vocabulary()[op].group for op in PRODUCTS} == {"matmul"}


@pytest.mark.parametrize(
    ("equation", "dimensions", "axes"),
    [
        ("ij,jk->ik", (2, 2), [(1,), (0,)]),
        ("ij,jk", (2, 2), [(1,), (0,)]),
        ("bhqd,bhkd->bhqk", (4, 4), [(3,), (3,)]),
        ("...ij,jk->...ik", (4, 2), [(3,), (0,)]),
        ("a...b,ab->...", (4, 2), [(0, 3), (0, 1)]),
    ],
)
def test_the_axes_that_an_einsum_sums_over(
    equation: str, dimensions: Sequence[int], axes: object
) -> None:
    assert contracted(equation, dimensions) == axes


def test_a_product_that_sums_over_nothing_has_no_rows() -> None:
    with pytest.raises(LeftOut, match="does not sum"):
        contracted("i,j->ij", (1, 1))


def test_the_factors_of_a_call() -> None:
    def change(n: int, value: str) -> str:
        return f"{value}{n}"

    assert with_factors("linear", ["x", "w", "b"], change) == ["x0", "w1", "b"]
    assert with_factors("addmm", ["b", "x", "w"], change) == ["b", "x0", "w1"]
    assert with_factors("einsum", ["e", ["x", "w"]], change) == ["e", ["x0", "w1"]]
    assert with_factors("einsum", ["e", "x", "w"], change) == ["e", "x0", "w1"]
    with pytest.raises(LeftOut, match="it multiplies 3 tensors; float8 is for products of two"):
        with_factors("einsum", ["e", ["x", "y", "z"]], change)


# --- traces and policies --------------------------------------------------------------------------

RAN = OpRecord(
    "linear",
    "n",
    Rule.UNTOUCHED,
    ("float32",),
    "float32",
    "float32",
    layer="Net.a",
    output_shape=(4,),
)


def test_a_shadow_may_be_float8_and_is_read_again(fake: Any) -> None:
    with trace(shadow=ml_dtypes.float8_e4m3fn) as t:
        for op, found in (("linear", Shadow("float8_e4m3", 0.04)), ("exp", None), ("relu", None)):
            fake.sinks[-1](
                RAN._replace(op=op, shadow=found or Shadow("float8_e4m3", left_out=NO_PRODUCT))
            )
    assert t.shadow == "float8_e4m3"
    assert t.shadow_table().splitlines() == [
        "layer  operation  error in float8_e4m3  overflow  subnormal  to zero  count",
        "Net.a  linear     0.04                  -         -          -        1",
        "not computed a second time:",
        f"exp, relu: {NO_PRODUCT}",
    ]
    again = unamp.Trace.from_json(t.to_json())
    assert (again.shadow, again.records) == (t.shadow, t.records)


def test_only_products_are_computed_and_results_are_float32() -> None:
    def never() -> list[Any]:
        raise AssertionError

    one = [np.array([1e-40, 0.0, 3.0])]
    assert shadow("float8_e5m2", RAN._replace(op="exp"), never, never) == Shadow(
        "float8_e5m2", left_out=NO_PRODUCT
    )
    assert shadow("float8_e5m2", RAN, lambda: one, lambda: one) == Shadow("float8_e5m2")


def test_names_of_shadows() -> None:
    assert [shadow_dtype(name) for name in ("fp16", "torch.float8_e4m3fn", *FLOAT8)] == [
        "float16",
        "float8_e4m3",
        *FLOAT8,
    ]
    with pytest.raises(
        ValueError,
        match=(
            "'float8_e4m3fnuz' is no dtype of a shadow; "
            "valid: 'float16', 'bfloat16', 'float8_e4m3', "
        ),
    ):
        trace(shadow="float8_e4m3fnuz")
    with pytest.raises(TypeError, match="must be a string or a dtype object, not int"):
        trace(shadow=8)


@pytest.mark.parametrize("dtype", ["float8_e4m3", ml_dtypes.float8_e5m2, "float8_e4m3_rows"])
def test_no_policy_computes_in_float8_and_the_error_says_what_to_do(dtype: Any) -> None:
    for make in (
        lambda: unamp.Policy(dtype=dtype),
        lambda: unamp.autocast(dtype=dtype),
    ):
        with pytest.raises(
            ValueError, match=r"500\.0 is 448 .* NaN .* unamp\.trace\(shadow=.* unamp\.tune\(dtype="
        ):
            make()


# --- the study ------------------------------------------------------------------------------------

STUDY = Float8Study(
    "float8_e4m3", 0.05, 0.03,
    [
        Float8Layer("enc.0.fc", 0.04, 0.01, 0.5),
        Float8Layer("enc.1.fc", 0.04, 0.2, 0.25, "beyond the tolerance alone"),
        Float8Layer("out'", 0.04, None, 0.125, "it has no weight of its own"),
        Float8Layer("dense", 0.04, 0.02, 0.125),
    ],
    9,
)  # fmt: skip


def test_the_table_of_a_study() -> None:
    assert STUDY.names == ["enc.0.fc", "dense"]
    assert STUDY.table().splitlines() == [
        "layer     products  own error  results, it alone  float8",
        "enc.0.fc  50.0%     0.04       0.01               yes",
        "enc.1.fc  25.0%     0.04       0.2                beyond the tolerance alone",
        "out'      12.5%     0.04       -                  it has no weight of its own",
        "dense     12.5%     0.04       0.02               yes",
        (
            "2 of 4 layers would bear float8_e4m3, 62.5% of the products: "
            "error 0.03 of 0.05 allowed, 9 runs"
        ),
    ]
    assert repr(STUDY) == "<Float8Study: 2 of 4 layers, error 0.03>"


def test_the_lists_of_a_study() -> None:
    assert [
        STUDY.module_filter_fn(None, name) for name in ("enc.0.fc", "enc.1.fc", "fc", "dense")
    ] == [
        True,
        False,
        False,
        True,
    ]
    # The filter leaves another layer named fc alone: a pattern could not tell the two apart.
    assert STUDY.keras_filters() == ["^dense$"]
    text = STUDY.transformer_engine()
    (pattern,) = re.findall(r"layer_name_regex_pattern: '(.*)'\n", text)
    pattern = pattern.replace("''", "'")
    assert [
        bool(re.match(pattern, name))
        for name in ("enc.1.fc", "model.enc.1.fc", "out'", "enc.0.fc", "enc.1.fc2", "en")
    ] == [True, True, True, False, False, False]
    assert "DisableFP8Layer:\n      enabled: True\n" in text
    assert (
        "every layer"
        in Float8Study("float8_e4m3", 0.05, 0.0, STUDY.layers[:1], 3).transformer_engine()
    )


def test_a_study_is_plain_data() -> None:
    layer = STUDY.layers[1]._replace(alone=float("inf"))
    data = Float8Study("float8_e4m3", 0.05, 0.03, [layer], 9).to_data()
    assert data["layers"] == [{**layer._asdict(), "alone": None}]
    assert (data["dtype"], data["error"], data["runs"]) == ("float8_e4m3", 0.03, 9)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"dtype": "float8_e4m3fnuz"}, "dtype 'float8_e4m3fnuz' is not a low precision"),
        ({"tolerance": 0}, "tolerance must be above 0"),
        ({"batches": []}, "batches is empty"),
        ({"network": None}, "network is None, and a study in float8 is about layers"),
        (
            {"by": "layer"},
            "by goes with a low dtype; a study in float8 takes tolerance and measure alone",
        ),
        ({"margin": 0.5}, "margin goes with a low dtype"),
        ({"base": unamp.Policy()}, "base goes with a low dtype"),
        ({"held_out": [0.0]}, "held_out goes with a low dtype"),
        ({"budget": 3}, "budget goes with a low dtype"),
        ({"resume": "here"}, "resume goes with a low dtype"),
        ({"progress": False}, "progress goes with a low dtype"),
    ],
)
def test_a_study_that_is_none_is_refused(given: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {
        "run": abs,
        "network": object(),
        "batches": [1],
        "dtype": "float8_e4m3",
        **given,
    }
    with pytest.raises(ValueError, match=says):
        unamp.tune(**arguments)
