"""`data/operators.toml` says what PyTorch's operators do without being asked. Here they are asked again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from unamp_conformance.cases import Case, cases
from unamp_torch.facts import facts
from unamp_torch.listing import operators

from unamp import vocabulary
from unamp.adapter.registry import adapter_for

#: What PyTorch says where it has no kernel for a dtype.
NO_KERNEL = re.compile(r"Half|BFloat16|[Ll]ow precision|float (or|and) double|[Uu]nsupported dtype")

#: Not told by an error, or not everywhere: oneDNN's float16 LSTM depends on the processor, matrix_exp answers NaN, and polar
#: answers in complex32 on some versions.
NOT_BY_AN_ERROR = {"lstm", "linalg_matrix_exp", "polar"}


def computing() -> Iterator[tuple[str, Case]]:
    names = adapter_for("torch").operations().names()
    for op, case in cases().items():
        listed = any(op in ops for ops in facts().lacking.values())
        if op in names and operators(op) and (listed or not vocabulary()[op].keeps_its_meaning):
            yield op, case


def floats(result: Any) -> list[torch.Tensor]:
    if isinstance(result, torch.Tensor):
        return [result] if result.is_floating_point() else []
    return [t for item in result for t in floats(item)] if isinstance(result, (tuple, list)) else []


def lacks_a_kernel(op: str, case: Case, dtype: torch.dtype) -> bool:
    operations = adapter_for("torch").operations()
    arrays = case.inputs(0)
    differentiable = case.differentiable(arrays) if case.backward else []
    tensors = [operations.tensor(array) for array in arrays]
    for n in case.eligible(arrays):
        tensors[n] = tensors[n].to(dtype).requires_grad_(n in differentiable)
    try:
        results = [t for t in floats(case.call(operations[op], tensors)) if t.requires_grad]
        if results:
            sum(t.float().sum() for t in results).backward()
    except RuntimeError as error:
        return bool(NO_KERNEL.search(str(error)))
    return False


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_the_operations_without_a_low_kernel_on_a_cpu(dtype: str) -> None:
    stated = facts().lacking["cpu", dtype] & adapter_for("torch").operations().names()
    measured = {op for op, case in computing() if lacks_a_kernel(op, case, getattr(torch, dtype))}
    assert sorted(measured - stated) == [], "missing in operators.toml"
    assert sorted(stated - measured - NOT_BY_AN_ERROR) == [], "in operators.toml, but torch has a kernel"


@pytest.mark.filterwarnings("ignore")
def test_the_operations_that_promote_by_themselves_do() -> None:
    operations = adapter_for("torch").operations()
    wrong = {}
    for op, case in cases().items():
        arrays = case.inputs(0)
        eligible = case.eligible(arrays)
        if op not in facts().promotes or len(eligible) < 2:
            continue
        for low in (eligible[:1], eligible[1:]):
            mixed, exact = ([operations.tensor(array) for array in arrays] for _ in range(2))
            for n in low:
                mixed[n], exact[n] = mixed[n].bfloat16(), exact[n].bfloat16().float()
            got, wanted = (floats(case.call(operations[op], tensors)) for tensors in (mixed, exact))
            pairs = list(zip(got, wanted, strict=True))
            if not all(g.dtype is w.dtype and torch.allclose(g, w, rtol=1e-6, equal_nan=True) for g, w in pairs):
                wrong[op] = [t.dtype for t in got]
    assert not wrong
