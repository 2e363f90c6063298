"""Every operation on torch's own autocast lists, on CPU tensors, gets the dtype that torch documents.

The lists with their arguments are those of torch's own tests. Under a preset each is called in every way there is (function,
method, both low dtypes), and compared bit by bit with the same call on explicitly cast arguments outside of any region.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.testing._internal.autocast_test_lists import AutocastCPUTestLists, AutocastTestLists

import unamp
from unamp import BannedOperation, Policy, Rule
from unamp.presets import preset as load_preset

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LOW = {"float16": F16, "bfloat16": BF16}


class Entry(NamedTuple):
    """One entry of torch's lists: what is called, with what, and the category that torch gives it."""

    source: str
    category: str
    name: str
    number: int
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    module: Any
    expected: Any = None

    @property
    def id(self) -> str:
        return f"{self.source}-{self.category}-{self.name}-{self.number}"

    def op(self) -> str:
        return OPERATION.get(self.name) or unamp.vocabulary().resolve(f"torch.{self.name}")

    def calls(self) -> Iterator[Callable[[Any, dict[str, Any]], Any]]:
        """The ways in which Python reaches it."""
        if self.module is not None and hasattr(self.module, self.name):
            function = getattr(self.module, self.name)
            yield lambda args, kwargs: function(*args, **kwargs)
        if hasattr(torch.Tensor, self.name):
            yield lambda args, kwargs: getattr(args[0], self.name)(*args[1:], **kwargs)
        if self.module is not None and self.name == "einsum":
            return


#: Methods whose name is not the operation's.
OPERATION = {
    **{f"__{name}__": name for name in ("eq", "ge", "gt", "le", "lt", "ne", "add", "div", "mul", "matmul", "pow")},
}

#: What a list of torch's says about its entries.
CUDA_LISTS = {
    "torch_expect_builtin_promote": ("widest", torch),
    "methods_expect_builtin_promote": ("widest", None),
    "torch_fp16": ("low", torch),
    "torch_fp32": ("float32", torch),
    "torch_need_autocast_promote": ("widest", torch),
    "nn_fp16": ("low", torch._C._nn),
    "nn_fp32": ("float32", torch._C._nn),
    "linalg_fp16": ("low", torch._C._linalg),
    "methods_fp16": ("low", None),
    "methods_fp32": ("float32", None),
    "banned": ("banned", torch._C._nn),
}
CPU_LISTS = {
    "torch_expect_builtin_promote": ("widest", torch),
    "methods_expect_builtin_promote": ("widest", None),
    "torch_16": ("low", torch),
    "torch_fp32": ("float32", torch),
    "nn_16": ("low", torch._C._nn),
    "nn_fp32": ("float32", torch._C._nn),
    "torch_need_autocast_promote": ("widest", torch),
}

#: What cannot be called on a CPU at all, in any dtype, region or not.
NOT_ON_CPU = {
    "cuda-low-cudnn_convolution-11": "cuDNN is CUDA's",
    "cuda-low-cudnn_convolution_transpose-12": "cuDNN is CUDA's",
    "cuda-widest-__div__-7": "Python 3 has no such method, and neither has torch.Tensor",
    "cpu-widest-__div__-7": "Python 3 has no such method, and neither has torch.Tensor",
    "cuda-low-einsum-18": "torch's entry is malformed: its arguments are a string",
}


def entries() -> list[Entry]:
    torch.manual_seed(0)
    found = []
    for source, lists, holder in (("cuda", CUDA_LISTS, AutocastTestLists("cpu")), ("cpu", CPU_LISTS, AutocastCPUTestLists("cpu"))):
        assert set(lists) == set(vars(holder)), "torch has other lists than this test reads"
        for attribute, (category, module) in lists.items():
            for number, (name, args, *rest) in enumerate(getattr(holder, attribute)):
                if attribute.endswith("builtin_promote"):
                    # (args,) of the CUDA list, (args for bfloat16, args for float16) of the CPU list
                    for more in (args, *rest[:-1]):
                        found.append(Entry(source, category, name, number, more, {}, module, rest[-1]))
                elif attribute == "torch_need_autocast_promote":
                    for more in (args, *rest):
                        found.append(Entry(source, category, name, number, more, {}, module))
                else:
                    module = rest.pop() if rest and category == "banned" else module
                    kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
                    found.append(Entry(source, category, name, number, args, kwargs, module))
    # Entries of one name are counted within their list; two of one id differ by the dtype of their arguments.
    return found


ENTRIES = entries()
