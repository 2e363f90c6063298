"""Calls with good and bad arguments, for type checkers to read.

test_typing.py gives them this file; nothing runs it. A call that a checker must refuse has a
comment that lets it through. A comment that lets nothing through is an error, too.
"""

from __future__ import annotations

import jax.numpy
import ml_dtypes
import numpy
import torch

import unamp
from unamp.dialects import torch as torch_dialect
from unamp.typing import DtypeLike, Level, PresetName


def in_words(level: Level, dtype: DtypeLike, preset: PresetName) -> unamp.Policy:
    return unamp.Policy(level, dtype, preset=preset)


def of_a_setting(dtype: str, exact: bool) -> unamp.Region:
    return unamp.autocast(dtype="float32" if exact else dtype)


again = in_words("O2", "bf16", "paddle").replace(level="O1")
unamp.Policy(again.level, again.dtype, preset=again.preset)
for level in unamp.LEVELS:
    unamp.Policy(level)

unamp.autocast("cuda", torch.bfloat16)
unamp.autocast(torch.device("cuda:0"))
unamp.autocast(dtype=numpy.float16)
unamp.autocast(dtype=numpy.dtype("float32"))
unamp.autocast(dtype=ml_dtypes.bfloat16)
unamp.autocast(dtype=jax.numpy.bfloat16)
unamp.auto_cast(level="OD", dtype=jax.numpy.dtype("bfloat16"))
unamp.decorate([], level="O2", dtype=torch.float16, save_dtype="float32")
unamp.auto_mixed_precision(torch.nn.Linear(1, 1), "O3", torch.bfloat16)
unamp.custom_fwd(cast_inputs=torch.float32)
torch_dialect.amp.autocast("cpu", dtype=torch.bfloat16)
unamp.Policy(allow="matmul", deny=["group:norm", torch.nn.Linear, torch.softmax])
unamp.Policy(allow=(jax.numpy.matmul,), deny=torch.matmul).decide(torch.nn.functional.linear)
unamp.autocast(allow={"exp", "log"}, deny=torch.nn.LSTM)
unamp.auto_cast(custom_white_list={"matmul_v2"}, custom_black_list=None)

unamp.Policy("O7")  # type: ignore[arg-type]
unamp.Policy("o1")  # type: ignore[arg-type]
unamp.Policy(2)  # type: ignore[arg-type]
unamp.Policy(dtype=3)  # type: ignore[arg-type]
unamp.Policy(dtype=None)  # type: ignore[arg-type]
unamp.Policy(preset="pytorch")  # type: ignore[arg-type]
unamp.Policy(levle="O1")  # type: ignore[call-arg]
unamp.Policy(allow=3)  # type: ignore[arg-type]
unamp.Policy(deny=["exp", 3])  # type: ignore[list-item]
unamp.Policy(deny=None)  # type: ignore[arg-type]
unamp.Policy().decide(3)  # type: ignore[arg-type]
unamp.autocast(allow=[None])  # type: ignore[list-item]
unamp.auto_cast(custom_black_list=3)  # type: ignore[arg-type]
unamp.autocast(3)  # type: ignore[arg-type]
unamp.autocast(torch.bfloat16)  # type: ignore[arg-type]
unamp.autocast(torch.nn.Linear(1, 1))  # type: ignore[arg-type]
unamp.autocast(dtype=3)  # type: ignore[arg-type]
unamp.autocast(dtype=float)  # type: ignore[arg-type]
unamp.autocast(level="O4")  # type: ignore[arg-type]
unamp.auto_cast(level="O1+")  # type: ignore[arg-type]
unamp.auto_cast(dtype=16)  # type: ignore[arg-type]
unamp.decorate([], level="O9")  # type: ignore[call-overload]
unamp.decorate([], dtype=16)  # type: ignore[call-overload]
unamp.auto_mixed_precision(torch.nn.Linear(1, 1), "OD")  # type: ignore[arg-type]
unamp.custom_fwd(cast_inputs=32)  # type: ignore[call-overload]
torch_dialect.amp.autocast("cpu", dtype=16)  # type: ignore[arg-type]
