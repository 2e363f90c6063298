"""Names of precisions, however they are spelled."""

from __future__ import annotations

__all__ = ["ELIGIBLE", "FLOAT32", "LOW_DTYPES", "dtype_name", "low_dtype"]

FLOAT32 = "float32"

#: What a policy may ask for.
LOW_DTYPES = ("float16", "bfloat16")

#: Tensors in these dtypes are cast; all others (float64, integers, booleans, complex numbers) never are.
ELIGIBLE = ("float16", "bfloat16", FLOAT32)

_ALIASES = {"fp16": "float16", "half": "float16", "bf16": "bfloat16", "fp32": "float32", "float": "float32"}


def low_dtype(value: object) -> str:
    """The canonical name of a low precision, ``"float16"`` or ``"bfloat16"``.

    Args:
        value: a string (``"fp16"``, ``"torch.bfloat16"``), a NumPy or ml_dtypes dtype or scalar type, or a framework's own
            dtype object.

    Raises:
        ValueError: for every other dtype; the message lists the valid ones.
        TypeError: for a value that is no dtype at all.
    """
    name = dtype_name(value)
    if name is None:
        raise TypeError(f"dtype must be a string or a dtype object, not {type(value).__name__}; valid: {_valid()}")
    if name not in LOW_DTYPES:
        raise ValueError(f"dtype {name!r} is not a low precision; valid: {_valid()}")
    return name


def dtype_name(value: object) -> str | None:
    """The name of a dtype (``"float32"``) given as a string or a dtype object; None for what is no dtype."""
    # Every framework's dtype object either prints its name last ("torch.float16", "paddle.bfloat16", "Float16") or
    # carries it as `.name`, and so do NumPy's and ml_dtypes'; scalar types carry it as `__name__`.
    if isinstance(value, str):
        text = value
    elif isinstance(value, type):
        text = value.__name__
    elif isinstance(name := getattr(value, "name", None), str):
        text = name
    elif "dtype" in type(value).__name__.lower() or type(value).__module__.split(".")[0] in str(value) or _is_plain(value):
        text = str(value)
    else:
        return None
    text = text.rsplit(".", 1)[-1].lower()
    return _ALIASES.get(text, text)


def _is_plain(value: object) -> bool:
    return str(value).lower() in ELIGIBLE  # MindSpore's objects are of a type `Float` and print "Float16"


def _valid() -> str:
    return ", ".join(repr(name) for name in LOW_DTYPES)
