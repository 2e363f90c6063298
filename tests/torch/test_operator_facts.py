"""`data/operators.toml` agrees with the installed PyTorch's operators."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from unamp_conformance.check.cases import Case, cases
from unamp_torch.facts import facts
from unamp_torch.listing import Operator, operators

from unamp import vocabulary
from unamp.adapter.registry import adapter_for

#: Outside of regions PyTorch's own kernels run, so unamp's kernels do not matter.
pytestmark = pytest.mark.either_kernels

#: The texts of PyTorch's errors about a missing kernel for a dtype.
NO_KERNEL = re.compile(r"Half|BFloat16|[Ll]ow precision|float (or|and) double|[Uu]nsupported dtype")

#: Missing kernels that raise no error, or not on every machine: oneDNN's float16 LSTM depends on
#: the processor, matrix_exp returns NaN, complex returns complex32, and so does polar in some
#: versions.
NOT_BY_AN_ERROR = {"complex", "linalg_matrix_exp", "lstm", "polar"}


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


def lacks_a_kernel(op: str, case: Case, dtype: torch.dtype, device: str) -> bool:
    operations = adapter_for("torch").operations()
    arrays = case.inputs(0)
    differentiable = case.differentiable(arrays) if case.backward else []
    tensors = [operations.tensor(array, device=device) for array in arrays]
    for n in case.eligible(arrays):
        tensors[n] = tensors[n].to(dtype).requires_grad_(n in differentiable)
    try:
        results = [t for t in floats(case.call(operations[op], tensors)) if t.requires_grad]
        if results:
            sum(t.float().sum() for t in results).backward()
    except RuntimeError as error:
        return bool(NO_KERNEL.search(str(error)))
    return False


#: Operations with a low kernel for some sizes alone (cuFFT: powers of two), and operations made of
#: ones without a kernel.
FOR_SOME_SIZES, MADE_OF_SUCH = ("fft_", "stft"), {"transformer_encoder_layer"}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("device", adapter_for("torch").devices())
def test_the_operations_without_a_low_kernel(device: str, dtype: str) -> None:
    stated = (
        facts().lacking["cuda" if device == "gpu" else device, dtype]
        & adapter_for("torch").operations().names()
    )
    measured = {
        op for op, case in computing() if lacks_a_kernel(op, case, getattr(torch, dtype), device)
    }
    missing, more = measured - stated, stated - measured - NOT_BY_AN_ERROR
    if device == "gpu":
        missing, more = (
            missing - MADE_OF_SUCH,
            {op for op in more if not op.startswith(FOR_SOME_SIZES)},
        )
    assert sorted(missing) == [], "missing in operators.toml"
    assert sorted(more) == [], "in operators.toml, but torch has a kernel"


def mixed_calls(case: Case) -> Iterator[tuple[Any, Any]]:
    """Yield inputs of differing dtypes, and the same inputs widened."""
    operations = adapter_for("torch").operations()
    arrays = case.inputs(0)
    eligible = case.eligible(arrays)
    for low in (eligible[:1], eligible[1:]) if len(eligible) > 1 else ():
        mixed, exact = ([operations.tensor(array) for array in arrays] for _ in range(2))
        for n in low:
            mixed[n], exact[n] = mixed[n].bfloat16(), exact[n].bfloat16().float()
        yield mixed, exact


def widens(case: Case, op: str) -> bool:
    function = adapter_for("torch").operations()[op]
    for mixed, exact in mixed_calls(case):
        got, wanted = floats(case.call(function, mixed)), floats(case.call(function, exact))
        pairs = zip(got, wanted, strict=True)
        if not all(
            g.dtype is w.dtype and torch.allclose(g, w, rtol=1e-6, equal_nan=True) for g, w in pairs
        ):
            return False
    return True


@pytest.mark.filterwarnings("ignore")
def test_the_operations_that_promote_by_themselves_do() -> None:
    assert [
        op for op, case in cases().items() if op in facts().promoting and not widens(case, op)
    ] == []


def test_the_operations_that_promote_have_gradients_that_do() -> None:
    refusing = set()
    for op in facts().promotes & cases().keys():
        case, function = cases()[op], adapter_for("torch").operations()[op]
        for mixed, _ in mixed_calls(case):
            for n in case.eligible(case.inputs(0)):
                mixed[n].requires_grad_()
            try:
                torch.autograd.backward(
                    [t.float().sum() for t in floats(case.call(function, mixed)) if t.requires_grad]
                )
            except RuntimeError as error:
                if "dtype" in str(error):
                    refusing.add(op)
    assert refusing == facts().promotes - facts().promoting


#: Calls that no example case makes.
ANSWERED = {
    "clamp": lambda x, y: x.clamp_max(y.sum()),
    "index_fill": lambda x, y: x.index_fill(0, torch.tensor([0]), y.sum()),
    "ldexp": lambda x, y: torch.ldexp(x, y.sum()),
    "masked_fill": lambda x, y: x.masked_fill(x > 0, y.sum()),
    "select_scatter": lambda x, y: x.select_scatter(y[0], 0, 0),
    "slice_scatter": lambda x, y: x.slice_scatter(y, 0),
}


@pytest.mark.filterwarnings("ignore")
def test_the_operations_that_answer_differing_dtypes_in_another_than_the_widest() -> None:
    x, y = torch.ones(2), torch.full((2,), 1 + 2**-9)
    measured = {
        op for op, call in ANSWERED.items() if call(x.bfloat16(), y).dtype is not torch.float32
    }
    for op, case in computing():
        entry = operators(op)
        if (
            op in facts().promoting
            or op in facts().made_of
            or any(o.composite for o in entry)
            or entry[0].eligible.single
        ):
            continue
        try:
            if not any(_listed(o) for o in entry) and not widens(case, op):
                measured.add(op)
        except (RuntimeError, TypeError, IndexError):
            continue
    assert sorted(measured) == sorted(facts().answering)


def _listed(operator: Operator) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(operator.name, "AutocastCPU"))
