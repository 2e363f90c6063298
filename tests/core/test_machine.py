"""The facts about a machine name its instruction sets and the variables that choose kernels."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unamp.adapter import machine


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file in which the system describes its processor; a test writes it."""
    path = tmp_path / "cpuinfo"
    monkeypatch.setattr(machine, "_CPUINFO", path)
    return path


def has() -> set[str]:
    return {name for name, there in machine.instruction_sets().items() if there}


def test_instruction_sets_of_x86_are_told(told: Path) -> None:
    told.write_text(
        "model name\t: Some: processor\nflags\t\t: fpu avx avx2x avx512_bf16 sse4_1\n\n"
        "flags\t: fpu avx2\n"
    )
    assert has() == {"avx", "avx512_bf16", "sse4_1"}
    assert set(machine.instruction_sets()) == set(machine.INSTRUCTION_SETS)
    assert machine.processor() == "Some: processor"


def test_instruction_sets_of_arm_are_told(told: Path) -> None:
    told.write_text("processor\t: 0\nFeatures\t: fp asimd bf16 sve\n")
    assert has() == {"asimd", "bf16", "sve"}


def test_a_system_that_tells_nothing_is_not_said_to_lack_anything(told: Path) -> None:
    assert machine.instruction_sets() == {}
    told.write_text("processor\t: 0\n")
    assert machine.instruction_sets() == {}
    assert isinstance(machine.processor(), str)


def test_variables_are_those_that_choose_kernels_or_threads() -> None:
    given = {
        **dict.fromkeys(
            (
                "OMP_NUM_THREADS",
                "ATEN_CPU_CAPABILITY",
                "ONEDNN_MAX_CPU_ISA",
                "DNNL_VERBOSE",
                "MKL_CBWR",
            ),
            "1",
        ),
        **dict.fromkeys(("TF_ENABLE_ONEDNN_OPTS", "TF_NUM_INTRAOP_THREADS"), "0"),
    }
    others = {"PATH": "/bin", "TF_CPP_MIN_LOG_LEVEL": "3", "XMKL_CBWR": "1", "HOME": "/"}
    assert machine.variables({**others, **given}) == given


def test_facts_are_of_the_processor_and_of_the_adapter(fake: Any, told: Path) -> None:
    told.write_text("flags : avx2\n")
    fake.runtime = lambda: {"threads": 3, "onednn": False}
    found = machine.facts(fake)
    assert (found["avx2"], found["avx"], found["threads"], found["onednn"]) == (
        True,
        False,
        3,
        False,
    )


@pytest.mark.parametrize(
    ("fact", "words"), [(True, "yes"), (False, "no"), (0, "0"), (1, "1"), ("AVX2", "AVX2")]
)
def test_a_fact_is_said(fact: Any, words: str) -> None:
    assert machine.said(fact) == words
