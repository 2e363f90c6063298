"""Every operation on torch's own autocast lists gets the dtype that torch documents.

The tensors are on the CPU. The lists and their arguments are those of torch's own tests. Under a
preset each operation is called in every way (function, method, both low dtypes). The results are
compared bit by bit with the same call on explicitly cast arguments, outside of regions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from own_lists import own_lists, tensors
from torch import Tensor
from unamp_conformance.check.cases import Case, cases
from unamp_torch.conformance import TorchOperations

import unamp
from unamp import BannedOperation, Policy, Rule
from unamp.adapter import major_minor
from unamp.presets import preset as load_preset

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16
LOW = {"float16": F16, "bfloat16": BF16}
OPERATIONS = TorchOperations()


class Entry(NamedTuple):
    """An entry of torch's lists: the operation, its arguments, and torch's category."""

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
        return f"{self.source}-{self.category}-{self.name}"

    def op(self) -> str:
        return OPERATION.get(self.name) or unamp.vocabulary().resolve(f"torch.{self.name}")

    def calls(self) -> dict[str, Callable[..., Any]]:
        """Return the ways to call the entry from Python."""
        found = {}
        if self.module is not None and hasattr(self.module, self.name):
            # Looked up at the call: while a region needs it, unamp replaces functions that torch
            # writes in Python (torch.norm).
            found["function"] = lambda *args, **kwargs: getattr(self.module, self.name)(
                *args, **kwargs
            )
        if hasattr(torch.Tensor, self.name):
            found["method"] = lambda first, *rest, **kwargs: getattr(first, self.name)(
                *rest, **kwargs
            )
        return found


#: Methods with another name than their operation.
OPERATION = {
    **{
        f"__{name}__": name
        for name in ("eq", "ge", "gt", "le", "lt", "ne", "add", "div", "mul", "matmul", "pow")
    },
}

#: The category of the entries of each of torch's lists, and the module of their functions.
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

#: Operations that a CPU cannot compute in float32 either.
NOT_ON_CPU = {
    "cuda-low-cudnn_convolution": "cuDNN needs a GPU; `convolution` is on the same list",
    "cuda-low-cudnn_convolution_transpose": (
        "cuDNN needs a GPU; `conv_transpose2d` is on the same list"
    ),
}

#: torch's entry has no valid arguments; torch's own tests do not call it.
MALFORMED = {"cuda-low-einsum": ("bkhd,bqhd->bqkh", torch.rand(2, 3, 2, 4), torch.rand(2, 5, 2, 4))}


def entries() -> list[Entry]:
    torch.manual_seed(0)
    found = []
    for source, of, lists in (
        ("cuda", "AutocastTestLists", CUDA_LISTS),
        ("cpu", "AutocastCPUTestLists", CPU_LISTS),
    ):
        holder = own_lists(of, "cpu")
        assert set(lists) == set(vars(holder)), "torch has other lists than this test reads"
        for attribute, (category, module) in lists.items():
            for name, args, *rest in getattr(holder, attribute):
                if attribute.endswith("builtin_promote"):
                    # The CUDA list has (args,); the CPU list has (args for bfloat16, args for
                    # float16).
                    for more in (args, *rest[:-1]):
                        found.append(Entry(source, category, name, 0, more, {}, module, rest[-1]))
                elif attribute == "torch_need_autocast_promote":
                    for more in (args, *rest):
                        found.append(Entry(source, category, name, 0, more, {}, module))
                else:
                    module = rest.pop() if rest and category == "banned" else module
                    kwargs = rest[0] if rest and isinstance(rest[0], dict) else {}
                    found.append(Entry(source, category, name, 0, args, kwargs, module))
    return [numbered(found, n) for n in range(len(found))]


def numbered(found: list[Entry], n: int) -> Entry:
    """Return the n-th entry, numbered among those with its name on its list.

    A malformed entry gets valid arguments.
    """
    entry = found[n]
    earlier = sum(e.id == entry.id for e in found[:n])
    args = MALFORMED.get(entry.id, entry.args)
    return entry._replace(number=earlier, args=args)


def converted(value: Any, to: Callable[[Tensor], Tensor]) -> Any:
    """Return `value` with every eligible tensor in it converted."""
    if isinstance(value, Tensor):
        return to(value) if value.dtype in (F32, F16, BF16) else value
    if isinstance(value, (list, tuple)):
        return type(value)(converted(item, to) for item in value)
    return value


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return (
            isinstance(b, Tensor)
            and a.dtype == b.dtype
            and bool(torch.equal(a, b) or torch.allclose(a, b, 0, 0, True))
        )
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(p, q) for p, q in zip(a, b, strict=True))
    return bool(a == b)


def controls(call: Callable[..., Any], entry: Entry, rule: Rule, low: torch.dtype) -> list[Any]:
    """Return the results that the rule allows, computed with every cast written out."""
    dtypes = {t.dtype for t in tensors(entry.args) if t.dtype in (F32, F16, BF16)}
    target = {Rule.LOW: low, Rule.FP32: F32}.get(rule)
    if target is None:
        target = F32 if rule is Rule.WIDEST and len(dtypes) > 1 else next(iter(dtypes))
    if rule is Rule.NARROWEST and len(lows := dtypes - {F32}) == 1:
        (target,) = lows
    given = converted(entry.args, lambda t: t.to(target))
    results = []
    try:
        results.append(call(*given, **entry.kwargs))
    except RuntimeError:
        if target is F32:
            raise
    if target is not F32:  # emulated: the same numbers, rounded before and after
        wide = call(*converted(given, lambda t: t.float()), **entry.kwargs)
        results.append(converted(wide, lambda t: t.to(target)))
    return results


def attempt(call: Callable[..., Any], entry: Entry) -> tuple[type[Exception] | None, Any]:
    try:
        return None, call(*entry.args, **entry.kwargs)
    except (RuntimeError, TypeError) as error:
        return type(error), None


def check(entry: Entry, policy: Policy) -> None:
    rule, low = policy.decide(entry.op()), LOW[policy.dtype]
    for way, call in entry.calls().items():
        if rule is Rule.UNTOUCHED:
            with unamp.policy_region(policy):
                inside = attempt(call, entry)
            outside = attempt(call, entry)
            assert inside[0] == outside[0]
            assert same(inside[1], outside[1])
            continue
        with unamp.policy_region(policy):
            if rule is Rule.BANNED:
                with pytest.raises(BannedOperation):
                    call(*entry.args, **entry.kwargs)
                continue
            torch.manual_seed(0)
            result = call(*entry.args, **entry.kwargs)
        accepted = controls(call, entry, rule, low)
        expected = [[str(t.dtype) for t in tensors(c)] for c in accepted]
        found = [str(t.dtype) for t in tensors(result)]
        where = f"{policy}, {way}: rule {rule.name}"
        assert found in expected, f"{where}, result {found}, not {expected[0]}"
        assert any(same(result, c) for c in accepted), (
            f"{where}, other numbers: {result} and {accepted[0]}"
        )


ENTRIES = entries()
CALLABLE = [entry for entry in ENTRIES if entry.id not in NOT_ON_CPU]
SOURCES = {"cuda": "torch-cuda", "cpu": "torch-cpu"}
RULES = {"low": Rule.LOW, "float32": Rule.FP32, "banned": Rule.BANNED}

each_entry = pytest.mark.parametrize("entry", CALLABLE, ids=lambda e: f"{e.id}-{e.number}")
each_low = pytest.mark.parametrize("dtype", ["bfloat16", "float16"])


def test_nothing_on_the_lists_is_left_out() -> None:
    assert len(ENTRIES) == len(CALLABLE) + len(NOT_ON_CPU)
    assert all(entry.calls() for entry in ENTRIES)


def test_what_is_left_out_cannot_run_on_a_cpu_in_float32_either() -> None:
    failing = set()
    for entry in ENTRIES:
        for call in entry.calls().values():
            try:
                call(*converted(entry.args, lambda t: t.float()), **entry.kwargs)
            except (RuntimeError, TypeError):
                failing.add(entry.id)
    assert failing == set(NOT_ON_CPU)


@each_low
@each_entry
def test_torchs_own_preset_gives_what_torch_documents(entry: Entry, dtype: str) -> None:
    policy = Policy("O1", dtype, preset=SOURCES[entry.source])
    low, rule = LOW[dtype], policy.decide(entry.op())
    if entry.category == "widest":
        # On the promote list, or an operation that promotes by itself.
        assert rule in (Rule.WIDEST, Rule.UNTOUCHED)
        documented = entry.expected if entry.expected is not None else F32
    else:
        assert rule == RULES[entry.category]
        documented = {"low": low, "float32": F32}.get(entry.category)
    if rule is not Rule.BANNED:
        for way, call in entry.calls().items():
            with unamp.policy_region(policy):
                result = call(*entry.args, **entry.kwargs)
            assert {t.dtype for t in tensors(result)} <= {documented}, way
    check(entry, policy)


OTHERS = [
    *(Policy("O1", dtype, preset=preset) for dtype in LOW for preset in ("unamp", "paddle")),
    *(Policy("O1", "bfloat16", preset=preset) for preset in ("mindspore", "tensorflow", "apex")),
    *(Policy(level, "bfloat16") for level in ("O0", "OD", "O2", "O3")),
]


@each_entry
def test_any_other_preset_or_level_gives_what_its_policy_decides(entry: Entry) -> None:
    for policy in OTHERS:
        check(entry, policy)


def test_torchs_cpu_preset_is_native_cpu_autocast() -> None:
    policy = Policy("O1", "bfloat16", preset="torch-cpu")
    for entry in CALLABLE:
        for call in entry.calls().values():
            with torch.autocast("cpu"):
                error, native = attempt(call, entry)
            if error:
                # torch has no rule here and refuses mixed inputs; unamp promotes, and `check`
                # compares the result
                continue
            with unamp.policy_region(policy):
                result = call(*entry.args, **entry.kwargs)
            assert [t.dtype for t in tensors(result)] == [t.dtype for t in tensors(native)], (
                entry.name
            )


#: Its factors stay float32, and only their product at the end is low. To cast the matrix down would
#: be another computation.
LOW_AT_THE_END = {"linalg_pinv"}


def _dtypes_of_results(case: Case) -> set[torch.dtype]:
    """Return the dtypes of an operation's results from float32 inputs; none where it fails."""
    try:
        found = case.call(
            OPERATIONS[case.op],
            [OPERATIONS.tensor(array, device="cpu") for array in case.inputs(0)],
        )
    except RuntimeError:
        return set()
    return {tensor.dtype for tensor in tensors(found)}


def test_what_native_cpu_autocast_makes_low_by_its_parts_is_on_the_preset() -> None:
    rules, low = Policy("O1", "bfloat16", preset="torch-cpu").rules, set()
    for op in sorted(OPERATIONS.names() & cases().keys()):
        exact = _dtypes_of_results(cases()[op])
        with torch.autocast("cpu", torch.bfloat16):
            if torch.bfloat16 in _dtypes_of_results(cases()[op]) - exact:
                low.add(op)
    assert {op for op in low if rules[op] is not Rule.LOW} == LOW_AT_THE_END


#: Operations on torch's lists that are younger than the vocabulary, with torch's version and a
#: call. unamp leaves them to torch's own autocast.
NEWER = {"linalg_matrix_sqrth": ((2, 14), lambda x: torch.linalg.matrix_sqrth(x @ x.mT))}


def listed_operations(key: str) -> set[str]:
    """Return the operations for which torch registers an autocast kernel, in torch's spelling."""
    registered = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return {name.removeprefix("aten::").partition(".")[0] for name in registered}


@pytest.mark.parametrize(
    ("preset", "key"), [("torch-cpu", "AutocastCPU"), ("torch-cuda", "AutocastCUDA")]
)
def test_every_operator_with_a_native_autocast_kernel_is_on_the_preset(
    preset: str, key: str
) -> None:
    lists = load_preset(preset)
    listed = lists.allow | lists.deny | lists.promote | set(lists.banned)
    spelled = listed_operations(key) - NEWER.keys()
    assert spelled
    assert not {
        spelling
        for spelling in spelled
        if unamp.vocabulary().resolve(f"torch.{spelling}") not in listed
    }


@pytest.mark.parametrize("preset", ["unamp", "torch-cpu", "native"])
def test_what_the_vocabulary_does_not_name_yet_is_left_to_torch(preset: str) -> None:
    listed = (listed_operations("AutocastCPU") | listed_operations("AutocastCUDA")) & NEWER.keys()
    assert listed == {
        name for name, (since, _) in NEWER.items() if major_minor(torch.__version__) >= since
    }
    for name in listed:
        with torch.autocast("cpu"):
            native = NEWER[name][1](torch.eye(3, dtype=BF16))
        with unamp.autocast("cpu", "bfloat16", preset=preset):
            found = NEWER[name][1](torch.eye(3, dtype=BF16))
        assert found.dtype == native.dtype == F32
        assert torch.equal(found, native)
