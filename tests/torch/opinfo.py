"""Hold the preset ``torch-cpu`` against ``torch.autocast("cpu")``, bit for bit.

``make conformance-opinfo`` runs this script.

PyTorch tests its own operators with `OpInfo` and its layers with `ModuleInfo`: these list example
calls. Each call is made twice with the same random numbers, once in either region. Results and
gradients must have the same dtypes and the same bits. Inputs are all float32, or all low; where
there are several, also the first alone low, and all but the first.

``tests/torch/opinfo.toml`` lists the calls that differ, with the reason. Any other difference
fails, and so does a listed call that does not differ. Arguments are names of operators or layers; a
run of all takes some minutes.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tomllib
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

import unamp

LISTED = Path(__file__).with_suffix(".toml")

LOW = {"bfloat16": torch.bfloat16, "float16": torch.float16}

#: Which floating inputs are low, by their number.
INPUTS: dict[str, Callable[[int], bool]] = {
    "float32": lambda number: False,
    "low": lambda number: True,
    "first low": lambda number: number == 0,
    "others low": lambda number: number > 0,
}

#: The kinds of difference: torch's own call raises and unamp's computes, or any other.
COMPUTED, DIFFERS = "computed", "differs"

_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Difference(NamedTuple):
    """One difference, listed or found."""

    op: str
    inputs: str
    dtype: str
    kind: str


class Call(NamedTuple):
    """An example: a function, its arguments, and further parameters that must have gradients."""

    function: Callable[..., Any]
    arguments: Any
    parameters: tuple[Tensor, ...] = ()

    def inputs(self) -> Iterable[str]:
        """Return the names in `INPUTS` that suit the call; a layer's inputs are float32 alone."""
        floating = sum(
            isinstance(t, Tensor) and t.dtype is torch.float32 for t in tree_leaves(self.arguments)
        )
        return (
            ("float32",)
            if self.parameters or not floating
            else INPUTS
            if floating > 1
            else ("float32", "low")
        )


class Outcome(NamedTuple):
    """The outcome of a call: its results, its gradients, and its error.

    The error is the one that ended the call or its backward pass.
    """

    returned: tuple[Any, ...]
    gradients: tuple[Any, ...]
    error: BaseException | None

    def is_that_of(self, other: Outcome) -> bool:
        """Return whether two outcomes are the same, to the bit."""
        if type(self.error) is not type(other.error):
            return False
        ours, theirs = (*self.returned, *self.gradients), (*other.returned, *other.gradients)
        return len(ours) == len(theirs) and all(map(same, ours, theirs))


def main(arguments: Sequence[str]) -> int:
    """Compare all calls, or the named ones; return 0 where the differences are those listed."""
    parser = argparse.ArgumentParser(
        description='Hold the preset torch-cpu against torch.autocast("cpu"), bit for bit.'
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="an operator or a layer; all, where none is named"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=0,
        metavar="N",
        help="at most so many calls of each (default: all)",
    )
    options = parser.parse_args(arguments)
    # The same numbers from the same kernels in both regions, and no uninitialised memory.
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True, warn_only=True)
    warnings.simplefilter("ignore")
    found: dict[Difference, str] = {}
    calls, names = 0, set()
    for name, call in examples(frozenset(options.names), options.samples):
        names.add(name)
        for how, dtype in ((how, dtype) for how in call.inputs() for dtype in LOW):
            calls += 1
            if (difference := compared(call, how, dtype)) is not None:
                kind, said = difference
                found.setdefault(Difference(name, how, dtype, kind), said)
    if unknown := set(options.names) - names:
        parser.error(
            f"no operator or layer of PyTorch's tests is called {', '.join(sorted(unknown))}"
        )
    return report(
        found,
        [each for each in listed() if each.op in names],
        calls,
        len(names),
        whole=not options.samples,
    )


def examples(wanted: frozenset[str], at_most: int) -> Iterator[tuple[str, Call]]:
    """Yield PyTorch's example calls, each with the name of its operator or layer."""
    for name, every in (*_operators(wanted), *_layers(wanted)):
        torch.manual_seed(0)
        calls = list(every())
        step = max(1, len(calls) // at_most) if at_most else 1
        for call in calls[::step]:
            yield name, call


def _operators(wanted: frozenset[str]) -> Iterator[tuple[str, Callable[[], Iterable[Call]]]]:
    def calls(op: Any) -> Iterator[Call]:
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd):
            yield Call(op, (sample.input, tuple(sample.args), dict(sample.kwargs)))

    for op in importlib.import_module("torch.testing._internal.common_methods_invocations").op_db:
        if torch.float32 in op.supported_dtypes("cpu") and (not wanted or op.name in wanted):
            yield op.name, lambda op=op: calls(op)  # type: ignore[misc]


def _layers(wanted: frozenset[str]) -> Iterator[tuple[str, Callable[[], Iterable[Call]]]]:
    def calls(info: Any) -> Iterator[Call]:
        for training in (True, False):
            given = info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=True, training=training
            )
            for sample in given:
                if sample.forward_input is None:
                    continue
                layer = info.module_cls(
                    *sample.constructor_input.args, **sample.constructor_input.kwargs
                ).train(training)
                arguments = sample.forward_input.args, dict(sample.forward_input.kwargs)
                parameters = tuple(p for p in layer.parameters() if p.requires_grad)
                yield Call(
                    lambda args, kwargs, layer=layer: layer(*args, **kwargs), arguments, parameters
                )

    for info in importlib.import_module("torch.testing._internal.common_modules").module_db:
        if torch.float32 in info.dtypes and (not wanted or info.name in wanted):
            yield info.name, lambda info=info: calls(info)  # type: ignore[misc]


def compared(call: Call, how: str, dtype: str) -> tuple[str, str] | None:
    """Return the kind of a call's difference, with both outcomes in words; else None."""

    def run(region: AbstractContextManager[Any]) -> Outcome:
        return outcome(call, given(call.arguments, INPUTS[how], LOW[dtype]), region)

    native = run(torch.autocast("cpu", LOW[dtype]))
    ours = run(unamp.autocast("cpu", dtype, preset="torch-cpu"))
    if ours.is_that_of(native):
        return None
    if not run(torch.autocast("cpu", LOW[dtype])).is_that_of(native):
        return None  # torch's own call differs from one time to the next
    if (
        native.error is not None
        and ours.error is None
        and all(map(same, native.returned, ours.returned))
    ):
        return COMPUTED, str(native.error).partition("\n")[0]
    return DIFFERS, f"torch.autocast gives {_told(native)}, unamp {_told(ours)}"


def given(arguments: Any, is_low: Callable[[int], bool], low: torch.dtype) -> Any:
    """Return the arguments with fresh copies of their tensors, the chosen ones in the low dtype."""
    number = -1

    def fresh(value: Any) -> Any:
        nonlocal number
        if not isinstance(value, Tensor):
            return value
        copy = value.detach().clone()
        if copy.dtype is torch.float32:
            number += 1
            copy = copy.to(low) if is_low(number) else copy
        return copy.requires_grad_(value.requires_grad)

    return tree_map(fresh, arguments)


def outcome(call: Call, arguments: Any, region: AbstractContextManager[Any]) -> Outcome:
    """Make a call in a region, and its backward pass after the region."""
    torch.manual_seed(0)
    try:
        with region:
            if len(arguments) == 3:  # an operator's call, not a layer's
                returned = tuple(
                    tree_leaves(call.function(arguments[0], *arguments[1], **arguments[2]))
                )
            else:
                returned = tuple(tree_leaves(call.function(*arguments)))
    except Exception as error:
        return Outcome((), (), error)
    results = [t for t in returned if isinstance(t, Tensor) and t.requires_grad]
    leaves = [
        t
        for t in (*tree_leaves(arguments), *call.parameters)
        if isinstance(t, Tensor) and t.requires_grad
    ]
    if not (results and leaves):
        return Outcome(returned, (), None)
    try:
        cotangents = [torch.randn(t.shape, dtype=t.dtype) for t in results]
        return Outcome(
            returned, torch.autograd.grad(results, leaves, cotangents, allow_unused=True), None
        )
    except Exception as error:
        return Outcome(returned, (), error)


def same(ours: Any, theirs: Any) -> bool:
    """Return whether two results are the same, to the bit; any NaN equals any other."""
    if not (isinstance(ours, Tensor) and isinstance(theirs, Tensor)):
        return bool(ours == theirs) or (ours != ours and theirs != theirs)
    if (ours.dtype, ours.shape, ours.layout) != (theirs.dtype, theirs.shape, theirs.layout):
        return False
    a, b = (_plain(t.detach()) for t in (ours, theirs))
    if not a.is_floating_point():
        return torch.equal(a, b)
    integer = _INTEGERS[a.itemsize]
    return bool(((a.view(integer) == b.view(integer)) | (a.isnan() & b.isnan())).all())


def _plain(tensor: Tensor) -> Tensor:
    dense = tensor if tensor.layout is torch.strided else tensor.to_dense()
    resolved = dense.resolve_conj().resolve_neg().contiguous()
    return torch.view_as_real(resolved) if resolved.is_complex() else resolved


def _told(outcome: Outcome) -> str:
    if outcome.error is not None:
        return f"{type(outcome.error).__name__}: {str(outcome.error).partition('.')[0]:.120}"
    dtypes = [
        ", ".join(
            dict.fromkeys(
                str(t.dtype).removeprefix("torch.") for t in tensors if isinstance(t, Tensor)
            )
        )
        for tensors in (outcome.returned, outcome.gradients)
    ]
    return " with gradients in ".join(filter(None, dtypes))


def listed() -> Iterator[Difference]:
    """Yield the listed exceptions."""
    for entry in tomllib.loads(LISTED.read_text("utf-8")).get("exception", []):
        reason, kind = entry["reason"], entry["kind"]
        if (
            not reason
            or kind not in (COMPUTED, DIFFERS)
            or not set(entry["inputs"]) <= INPUTS.keys()
        ):
            raise ValueError(
                f"{LISTED.name}: {entry}: expected a reason, a kind ({COMPUTED}, {DIFFERS}), "
                f"and inputs: {[*INPUTS]}"
            )
        for op in entry["ops"]:
            for inputs in entry["inputs"]:
                for dtype in entry.get("dtypes", LOW):
                    yield Difference(op, inputs, dtype, kind)


def report(
    found: dict[Difference, str],
    expected: Iterable[Difference],
    calls: int,
    names: int,
    *,
    whole: bool,
) -> int:
    """Print the exceptions; return 0 where the found ones are exactly the listed ones."""
    known = set(expected)
    grouped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for each in sorted(known & found.keys()):
        grouped[each.kind, each.inputs].append(each.op)
    print(f"{names} operators and layers, {calls} calls")
    for (kind, inputs), ops in grouped.items():
        print(f"listed, {kind}, {inputs} inputs: {', '.join(dict.fromkeys(ops))}")
    wrong = sorted(found.keys() - known)
    for each in wrong:
        print(
            f"not listed: {each.op} [{each.dtype}, {each.inputs} inputs] {each.kind}: {found[each]}"
        )
    in_vain = sorted(known - found.keys()) if whole else []
    for each in in_vain:
        print(f"listed, but the same: {each.op} [{each.dtype}, {each.inputs} inputs] {each.kind}")
    if not (wrong or in_vain):
        print("all else is the same to the bit, forward and backward")
    return 1 if wrong or in_vain else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
