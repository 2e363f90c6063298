"""Precisions: one table of their formats, and their names in every spelling."""

from __future__ import annotations

from typing import NamedTuple

from unamp.errors import shortened

FLOAT32 = "float32"


class FloatFormat(NamedTuple):
    """A binary floating format.

    Attributes:
        name: its common name.
        size: the bytes of a number.
        digits: the binary digits of a significand, the one that is not stored included.
        smallest_exponent, largest_exponent: of the powers of two between which normal numbers lie.
        low: whether it is a low precision: one that a policy casts to.
        aliases: other names for it.
    """

    name: str
    size: int
    digits: int
    smallest_exponent: int
    largest_exponent: int
    low: bool = False
    aliases: tuple[str, ...] = ()

    @property
    def unit_roundoff(self) -> float:
        """The largest relative error of rounding to the nearest number."""
        return float(2.0**-self.digits)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        return float((2.0 - 2.0 ** (1 - self.digits)) * 2.0**self.largest_exponent)

    @property
    def smallest_normal(self) -> float:
        """The smallest positive number that is not subnormal."""
        return float(2.0**self.smallest_exponent)

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive number."""
        return float(2.0 ** (self.smallest_exponent - self.digits + 1))


#: Every known precision, by name. Sources: IEEE 754-2019, table 3.5, and for bfloat16
#: https://en.wikipedia.org/wiki/Bfloat16_floating-point_format. A new low precision is a row here,
#: and one in ``DTYPES`` (in ``state.py``) of each adapter whose framework computes with it; the
#: other adapters refuse a region in it. Type checkers and editors know its name from ``DtypeName``
#: in ``typing.py``, and from the schema of ``precision.toml``.
PRECISIONS = {
    precision.name: precision
    for precision in (
        FloatFormat("float16", 2, 11, -14, 15, low=True, aliases=("fp16", "half")),
        FloatFormat("bfloat16", 2, 8, -126, 127, low=True, aliases=("bf16",)),
        FloatFormat(FLOAT32, 4, 24, -126, 127, aliases=("fp32", "float")),
        FloatFormat("float64", 8, 53, -1022, 1023, aliases=("fp64", "double")),
    )
}

#: The low precisions.
LOW_DTYPES = tuple(precision.name for precision in PRECISIONS.values() if precision.low)

#: The dtypes of a policy: the one in which its allow list computes.
POLICY_DTYPES = (*LOW_DTYPES, FLOAT32)

#: The float8 formats in which products of matrices are studied, with one scale for a tensor, or one
#: for each row. No policy casts to them.
FLOAT8 = ("float8_e4m3", "float8_e4m3_rows", "float8_e5m2", "float8_e5m2_rows")

#: Tensors in these dtypes are cast; others (float64, integers, booleans, complex ones) never are.
ELIGIBLE = (*LOW_DTYPES, FLOAT32)

_ALIASES = {
    alias: precision.name for precision in PRECISIONS.values() for alias in precision.aliases
}
# the frameworks' name; FN: finite numbers and NaN
_FLOAT8_ALIASES = {"float8_e4m3fn": "float8_e4m3"}


def low_dtype(value: object) -> str:
    """Return the canonical name of a low precision, one of `LOW_DTYPES`.

    Args:
        value: a string (``"fp16"``, ``"torch.bfloat16"``), a NumPy or ml_dtypes dtype or scalar
            type, or a framework's own dtype object.

    Raises:
        ValueError: for every other dtype; the message lists the valid ones.
        TypeError: for a value that is no dtype at all.
    """
    return _one_of(LOW_DTYPES, value, "is not a low precision")


def policy_dtype(value: object) -> str:
    """Return the canonical name of a policy's dtype, one of `POLICY_DTYPES`.

    Args:
        value: see `low_dtype`.

    Raises:
        ValueError: for every other dtype; the message lists the valid ones.
        TypeError: for a value that is no dtype at all.
    """
    return _one_of(POLICY_DTYPES, value, "is no dtype of a policy")


def shadow_dtype(value: object) -> str:
    """Return the canonical name of a dtype for `unamp.trace(shadow=...)`.

    It is one of `LOW_DTYPES` or `FLOAT8`.

    Args:
        value: see `low_dtype`.

    Raises:
        ValueError: for every other dtype; the message lists the valid ones.
        TypeError: for a value that is no dtype at all.
    """
    return _float8(value) or _one_of((*LOW_DTYPES, *FLOAT8), value, "is no dtype of a shadow")


def is_float8(value: object) -> bool:
    """Return whether a value is a dtype of float8, in any form that `low_dtype` takes."""
    return _float8(value) is not None


def _float8(value: object) -> str | None:
    name = dtype_name(value)
    name = _FLOAT8_ALIASES.get(name or "", name)
    return name if name in FLOAT8 else None


def _one_of(valid: tuple[str, ...], value: object, otherwise: str) -> str:
    words = ", ".join(map(repr, valid))
    name = dtype_name(value)
    if name is None:
        raise TypeError(
            f"dtype must be a string or a dtype object, not {type(value).__name__}; valid: {words}"
        )
    if name not in valid and name.startswith("float8") and FLOAT8[0] not in valid:
        raise ValueError(
            f"dtype {shortened(name)} {otherwise}; valid: {words}. A bare cast to float8 is not "
            "the same everywhere: 500.0 is 448 in PyTorch and PaddlePaddle, and NaN in JAX and "
            "TensorFlow. See which layers would bear products in float8 with "
            'unamp.trace(shadow="float8_e4m3") or unamp.tune(dtype="float8_e4m3"), and give the '
            'list to torchao, Transformer Engine or Keras\' quantize("float8")'
        )
    if name not in valid:
        raise ValueError(f"dtype {shortened(name)} {otherwise}; valid: {words}")
    return name


def dtype_name(value: object) -> str | None:
    """Return the name of a dtype given as a string or an object; None for anything else."""
    # Every framework's dtype object either prints its name last ("torch.float16",
    # "paddle.bfloat16", "Float16") or carries it as `.name`, and so do NumPy's and ml_dtypes';
    # scalar types carry it as `__name__`.
    if isinstance(value, str):
        text = value
    elif isinstance(value, type):
        text = value.__name__
    elif isinstance(name := getattr(value, "name", None), str):
        text = name
    elif (
        "dtype" in type(value).__name__.lower()
        or type(value).__module__.split(".")[0] in str(value)
        or str(value).lower() in ELIGIBLE  # MindSpore's are of a type `Float`, and print "Float16"
    ):
        text = str(value)
    else:
        return None
    text = text.rsplit(".", 1)[-1].lower()
    return _ALIASES.get(text, text)
