"""The dtypes of the results of every operation, on the CPU and on one other device.

The script compares the CPU with meta tensors, or with PyTorch's second device
(`unamp_torch.conformance.second_device`). The latter needs a process of its own: once registered,
it stays.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext

import numpy as np
import torch
from unamp_conformance.check.cases import Case, cases
from unamp_torch.conformance import TorchOperations, second_device

import unamp
from unamp import Policy
from unamp.errors import BannedOperation
from unamp.presets import PRESETS

OPERATIONS = TorchOperations()

#: Policies under which every rule occurs.
FEW = [
    *(
        Policy(level, dtype)
        for level, dtype in (("O1", "float16"), ("O3", "bfloat16"), ("OD", "bfloat16"))
    ),
    Policy("O1", "bfloat16", preset="mindspore"),
]

#: Every level, and every preset that has lists of its own.
POLICIES = [
    *(
        Policy(level, dtype)
        for level in ("O0", "O1", "O2", "O3", "OD")
        for dtype in ("bfloat16", "float16")
    ),
    *(Policy("O1", "bfloat16", preset=name) for name in PRESETS if name not in ("unamp", "native")),
    Policy("O1", "float16", widen_results=True),
]


#: Operations whose result dtypes may differ, with the reason.
EXPLAINED = {
    "grouped_mm": "on meta tensors PyTorch takes no dtype but bfloat16",
}

#: Likewise, under the lists of PyTorch's own autocast for a CPU. Under them PyTorch itself computes
#: the parts of operations.
OF_PARTS = {
    "affine_grid": (
        "computed with bmm below autograd, where native autocast meets it on the CPU alone"
    ),
    "linalg_pinv": (
        "computed with matmul below autograd, where native autocast meets it on the CPU alone"
    ),
    "lstm": "on the CPU its path through oneDNN is on the list, and meta tensors take another",
}


def answers(
    case: Case, arrays: Sequence[np.ndarray], policy: Policy | None, device: str
) -> list[list[str]]:
    """Return the dtypes of an operation's results, or the name of its error.

    The operation is called with float32 inputs, then with low ones.
    """
    return [_answer(case, arrays, policy, device, low) for low in (False, True)]


def _answer(
    case: Case, arrays: Sequence[np.ndarray], policy: Policy | None, device: str, low: bool
) -> list[str]:
    tensors = [OPERATIONS.tensor(array, device=device) for array in arrays]
    if low:
        dtype = getattr(torch, policy.dtype if policy else "bfloat16")
        tensors = [t.to(dtype) if i in case.eligible(arrays) else t for i, t in enumerate(tensors)]
    with nullcontext() if policy is None else unamp.policy_region(policy):
        try:
            result = case.call(OPERATIONS[case.op], tensors)
        except (BannedOperation, TypeError, RuntimeError, IndexError, ValueError) as error:
            return [f"{type(error).__name__}"]
    leaves = torch.utils._pytree.tree_leaves(result)
    return [str(leaf.dtype) for leaf in leaves if isinstance(leaf, torch.Tensor)]


def disagreements(
    device: str, policies: Iterable[Policy]
) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yield the operations whose results on the CPU and on a device differ in dtype.

    Each comes with the policy and the two answers. Differences with a reason are left out: the
    device cannot compute the operation outside of regions either (the shape of a result can depend
    on numbers, which a meta tensor has not), the CPU cannot, or the operation is in `EXPLAINED`.
    """
    names = OPERATIONS.names()
    for op, case in cases().items():
        if op not in names or op in EXPLAINED:
            continue
        arrays = case.inputs(0)
        possible = [
            not answer[:1] or answer[0].startswith("torch.")
            for answer in answers(case, arrays, None, device)
        ]
        for policy in policies:
            both = (answers(case, arrays, policy, where) for where in ("cpu", device))
            for here, there, can in zip(*both, possible, strict=True):
                if policy.preset == "torch-cpu" and op in OF_PARTS:
                    continue
                if (
                    here != there
                    and can
                    and here[:1] not in (["NotImplementedError"], ["RuntimeError"])
                ):
                    yield op, f"{policy.level} {policy.dtype} {policy.preset}", here, there


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    chosen = POLICIES if "all" in sys.argv else FEW
    if "meta" in sys.argv:
        found = list(disagreements("meta", [*chosen, Policy("O1", "bfloat16", preset="torch-cpu")]))
    else:
        second_device.register()
        # Under PyTorch's lists for a CPU, and there alone, PyTorch itself computes the composites.
        found = list(
            disagreements(second_device.NAME, [p for p in chosen if p.preset != "torch-cpu"])
        )
    print(json.dumps(found))
    sys.stdout.flush()
    os._exit(0)  # PyTorch's thread for the device's backward passes cannot be ended otherwise
