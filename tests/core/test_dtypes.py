"""Every spelling of a precision is accepted, and everything else is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from unamp.dtypes import dtype_name, low_dtype


class DType:
    """A dtype object that only prints its name, as the frameworks' do."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


class Named:
    """A dtype object with its name in an attribute."""

    name = "bfloat16"


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("float16", "float16"),
        ("fp16", "float16"),
        ("half", "float16"),
        ("FP16", "float16"),
        ("torch.float16", "float16"),
        ("bfloat16", "bfloat16"),
        ("bf16", "bfloat16"),
        ("tf.bfloat16", "bfloat16"),
        (np.float16, "float16"),
        (np.dtype("float16"), "float16"),
        (ml_dtypes.bfloat16, "bfloat16"),
        (np.dtype(ml_dtypes.bfloat16), "bfloat16"),
        (DType("framework.bfloat16"), "bfloat16"),
        (DType("Float16"), "float16"),
        (Named(), "bfloat16"),
    ],
)
def test_low_precisions(value: object, name: str) -> None:
    assert low_dtype(value) == name


@pytest.mark.parametrize(
    "value",
    [
        "float32",
        "float64",
        "int8",
        "float8_e4m3fn",
        "",
        np.float32,
        np.int64,
        DType("x.float32"),
        int,
    ],
)
def test_other_dtypes_are_refused_with_the_valid_ones(value: object) -> None:
    with pytest.raises(ValueError, match="is not a low precision; valid: 'float16', 'bfloat16'"):
        low_dtype(value)


def test_a_long_name_is_not_echoed_whole() -> None:
    with pytest.raises(ValueError, match="is not a low precision") as raised:
        low_dtype("x" * 100_000)
    assert len(str(raised.value)) < 200


@pytest.mark.parametrize("value", [None, 16, 1.5, [], object(), ("float16",)])
def test_what_is_no_dtype_is_a_type_error(value: object) -> None:
    with pytest.raises(TypeError, match="dtype must be a string or a dtype object"):
        low_dtype(value)


@pytest.mark.parametrize(
    ("value", "name"),
    [("float", "float32"), ("fp32", "float32"), (np.float64, "float64"), (None, None), (3, None)],
)
def test_dtype_name(value: object, name: str | None) -> None:
    assert dtype_name(value) == name
