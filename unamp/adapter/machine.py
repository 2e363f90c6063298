"""The machine that frameworks compute on: its processor, and settings that change its use."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path

from unamp.adapter.contract import Adapter, Fact

#: The instruction sets that frameworks have kernels for, as Linux spells them in /proc/cpuinfo:
#: those of x86, then of Arm.
INSTRUCTION_SETS = tuple(
    (
        "sse4_1 sse4_2 avx f16c fma avx2 avx_vnni avx512f avx512bw avx512_vnni avx512_bf16 "
        "avx512_fp16 amx_tile amx_int8 amx_bf16 amx_fp16 "
        "asimd fphp asimdhp bf16 i8mm sve sve2"
    ).split()
)

#: The beginnings of names of environment variables that choose among a framework's kernels, or set
#: the number of threads.
_PREFIXES = tuple("ATEN_ DNNL_ KMP_ MKL_ OMP_ ONEDNN_ OPENBLAS_ TF_ENABLE_ONEDNN TF_NUM_".split())

_CPUINFO = Path("/proc/cpuinfo")  # only Linux tells names and instruction sets this way


def facts(adapter: Adapter) -> dict[str, Fact]:
    """Return the facts of how a framework computes here: instruction sets, and its adapter's."""
    return {**instruction_sets(), **adapter.runtime()}


def instruction_sets() -> dict[str, bool]:
    """Return whether the processor has each of `INSTRUCTION_SETS`; empty where that is unknown."""
    found = _told("flags") or _told("Features")
    return {name: name in found.split() for name in INSTRUCTION_SETS} if found else {}


def processor() -> str:
    """Return the processor's name, as the system tells it."""
    return _told("model name") or platform.processor()


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment variables that change what frameworks compute with."""
    return {
        name: value for name, value in sorted(environment.items()) if name.startswith(_PREFIXES)
    }


def said(fact: Fact) -> str:
    """Return a fact as people say it."""
    return {True: "yes", False: "no"}[fact] if isinstance(fact, bool) else str(fact)


def _told(field: str) -> str:
    """Return a field of the first processor; empty where it is not told."""
    try:
        lines = _CPUINFO.read_text("utf-8").splitlines()
    except OSError:
        return ""
    pairs = (line.partition(":") for line in lines)
    return next((value.strip() for name, _, value in pairs if name.strip() == field), "")
