"""`paddle.amp.white_list` and `black_list`."""

from __future__ import annotations

from unamp._data import load_table


def white_list() -> dict[str, dict[str, set[str]]]:
    """Return a copy of Paddle's white lists by dtype and level, in Paddle's names."""
    white, only_float16 = _table("WHITE_LIST"), _table("ONLY_FP16_WHITE_LIST")
    by_dtype = {"float16": white | only_float16, "bfloat16": white}
    return {
        dtype: {level: set(names) for level in ("OD", "O1", "O2")}
        for dtype, names in by_dtype.items()
    }


def black_list() -> dict[str, dict[str, set[str]]]:
    """Return a copy of Paddle's black lists by dtype and level, in Paddle's names."""
    black, extra = _table("FP16_BLACK_LIST"), _table("EXTRA_BLACK_LIST")
    return {
        dtype: {"OD": set(), "O1": black | extra, "O2": set(extra)}
        for dtype in ("float16", "bfloat16")
    }


def _table(name: str) -> set[str]:
    return set(load_table("dialects/paddle.toml")[name])
