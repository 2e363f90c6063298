"""The cost of one operation, on 4x4 tensors: there it is all overhead."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch
import torch.nn.functional as F

import unamp
from benchmarks.measure import Comparison, Contender
from benchmarks.on_torch.alternative import function_mode

__all__ = ["custom", "in_python", "native"]

Region = Callable[[], AbstractContextManager[Any]]

#: Lists for all contenders; they change some of the timed operations, and not the others.
ALLOW, DENY = ("add",), ("linear", "softmax")


def _torch() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", dtype=torch.bfloat16)


def _unamp(**arguments: Any) -> Region:
    return lambda: unamp.autocast("cpu", dtype="bfloat16", **arguments)


def _no_grad(region: Region) -> Region:
    def both() -> AbstractContextManager[Any]:
        stack = ExitStack()
        stack.enter_context(torch.no_grad())
        stack.enter_context(region())
        return stack

    return both


def _names(grad: bool) -> dict[str, Any]:
    # not leaves: a cache of weights would answer for leaves
    a, b, c = (torch.randn(4, 4).requires_grad_(grad).mul(1.0) for _ in range(3))
    low = {f"{name}_low": tensor.to(torch.bfloat16) for name, tensor in (("a", a), ("b", b))}
    return {"torch": torch, "F": F, "a": a, "b": b, "c": c, **low}


def _modes() -> tuple[tuple[str, Callable[[Region], Region], dict[str, Any]], ...]:
    return ("no_grad", _no_grad, _names(False)), ("grad", lambda region: region, _names(True))


def native() -> list[Comparison]:
    """Compare policies that PyTorch's own autocast carries out."""
    regions: dict[str, tuple[Region, float | None]] = {
        "torch.autocast": (_torch, None),
        "unamp, preset native": (_unamp(preset="native"), 1.02),
        "unamp, preset torch-cpu": (_unamp(preset="torch-cpu"), 1.02),
    }
    return [
        Comparison(
            f"policy that torch realises, {what}, {mode}",
            tuple(
                Contender(name, source, names, within(region), goal)
                for name, (region, goal) in regions.items()
            ),
        )
        for mode, within, names in _modes()
        for what, source in (
            ("listed mm", "torch.mm(a, b)"),
            ("unlisted mul", "torch.mul(a, b)"),
            ("unlisted add", "torch.add(a, b)"),
            ("unlisted relu", "torch.relu(a)"),
        )
    ]


def custom() -> list[Comparison]:
    """Compare custom lists: operations that they leave alone, and operations that they change."""
    lists = {"allow": ALLOW, "deny": DENY}
    mode = function_mode(ALLOW, DENY)
    found = []
    for label, within, names in _modes():
        for what, source in (
            ("mul", "torch.mul(a, b)"),
            ("relu", "torch.relu(a)"),
            ("mm", "torch.mm(a, b)"),
        ):
            found.append(
                Comparison(
                    f"custom lists, unrelated {what}, {label}",
                    (
                        Contender("torch.autocast", source, names, within(_torch)),
                        Contender(
                            "unamp, preset torch-cpu",
                            source,
                            names,
                            within(_unamp(preset="torch-cpu", **lists)),
                            1.05,
                        ),
                        Contender("unamp", source, names, within(_unamp(**lists)), 1.05),
                        Contender("TorchFunctionMode", source, names, within(mode)),
                        Contender("float32, no region", source, names, within(nullcontext)),
                    ),
                )
            )
        listed = Contender("mm, 2 casts, torch.autocast", "torch.mm(a, b)", names, within(_torch))
        linear = Contender(
            "linear, 3 casts, torch.autocast", "F.linear(a, b)", names, within(_torch)
        )
        for what, source, baseline, plain in (
            (
                "add, 2 casts",
                "torch.add(a, b)",
                listed,
                "torch.add(a.to(torch.bfloat16), b.to(torch.bfloat16))",
            ),
            ("add, already low", "torch.add(a_low, b_low)", listed, "torch.add(a_low, b_low)"),
            (
                "softmax denied, 1 cast",
                "torch.softmax(a_low, -1)",
                listed,
                "torch.softmax(a_low.float(), -1)",
            ),
            (
                "linear denied, 2 casts",
                "F.linear(a_low, b_low)",
                linear,
                "F.linear(a_low.float(), b_low.float())",
            ),
            ("linear denied, no cast", "F.linear(a, b)", linear, "F.linear(a, b)"),
        ):
            found.append(
                Comparison(
                    f"custom lists, changed {what}, {label}",
                    (
                        baseline,
                        Contender("unamp", source, names, within(_unamp(**lists)), 2.0),
                        Contender("TorchFunctionMode", source, names, within(mode)),
                        Contender("casts written by hand", plain, names, within(nullcontext)),
                    ),
                )
            )
    return found


def in_python() -> list[Comparison]:
    """Compare operations changed without a C++ compiler with one that PyTorch's lists change.

    All run in the same region.
    """
    return [
        Comparison(
            f"custom lists, changed {what}, {label}",
            (
                Contender(
                    "listed mm, unamp",
                    "torch.mm(a, b)",
                    names,
                    within(_unamp(allow=ALLOW, deny=DENY)),
                ),
                Contender(what, source, names, within(_unamp(allow=ALLOW, deny=DENY)), 1.85),
            ),
        )
        for label, within, names in _modes()
        for what, source in (
            ("add, 2 casts", "torch.add(a, b)"),
            ("add, already low", "torch.add(a_low, b_low)"),
        )
    ]
