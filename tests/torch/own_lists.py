"""The lists in PyTorch's own tests of autocast, with a call for each entry."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def own_lists(name: str, device: str) -> Any:
    """Return an instance of a class of torch.testing._internal.autocast_test_lists.

    Only the class is run, from the source: the module's imports need packages beside torch.
    """
    tree = ast.parse(
        (Path(torch.__file__).parent / "testing/_internal/autocast_test_lists.py").read_text(
            "utf-8"
        )
    )
    tree.body = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name]
    namespace: dict[str, Any] = {"torch": torch, "TEST_WITH_ROCM": False}
    exec(compile(tree, "autocast_test_lists.py", "exec"), namespace)
    return namespace[name](device)


def tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors(item)
