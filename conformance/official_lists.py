"""The lists of each framework's own mixed precision, read without importing the framework.

``tests/frameworks`` compares the presets with the lists of the installed frameworks.
``preset_versions.py`` writes the differences of other versions.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
from collections import defaultdict
from pathlib import Path

from unamp._data import load_table

__all__ = [
    "FP32_MACROS",
    "mindspore_lists",
    "paddle_lists",
    "spellings",
    "tensorflow_lists",
    "torch_kernels_by_symbol",
    "torch_macros",
]

FP32_MACROS = ("FP32", "FP32_SET_OPT_DTYPE", "DIFFERENT_REDISPATCH_SIGNATURE")


@functools.cache
def spellings(framework: str) -> dict[str, str]:
    """Return the canonical name for each of a framework's own words."""
    ops = load_table("vocabulary.toml")["ops"]
    return {spelling: name for name, op in ops.items() for spelling in op.get(framework, ())}


def torch_macros(package: Path) -> dict[str, set[str]]:
    """Return the operator names in each list macro of ATen's autocast header."""
    text = (package / "include/ATen/autocast_mode.h").read_text("utf-8").replace("\\\n", " ")
    lists = dict(re.findall(r"#define (AT_FORALL_\w+)\(_\)([^\n]*)", text))
    # An entry is written `_(name)`, `_(name, overload)` or, where the redispatch signature differs,
    # `_(ADD_NS(name), ...)`.
    names = {
        macro: set(re.findall(r"\b_\(\s*(?:ADD_NS\()?(\w+)", body)) for macro, body in lists.items()
    }
    wanted = (
        "LOWER_PRECISION_FP",
        "FP32",
        "FP32_SET_OPT_DTYPE",
        "DIFFERENT_REDISPATCH_SIGNATURE",
        "PROMOTE",
    )
    assert all(names.get(f"AT_FORALL_{key}") for key in wanted), (
        "ATen/autocast_mode.h no longer has the macros we read"
    )
    return {key: names[f"AT_FORALL_{key}"] for key in wanted}


#: The list for each `CastPolicy` of torch's kernels: three of the policies are float32.
_BY_POLICY = ("allow", "deny", "deny", "deny", "promote")

#: torch's numbers for types of devices.
_DEVICES = {0: "torch-cpu", 1: "torch-cuda", 13: "torch-mps"}

_KERNEL = re.compile(
    r"at::autocast::WrapFunction_<\(at::autocast::CastPolicy\)(\d), \(c10::DeviceType\)(\d+), "
    r".*?&at::(?:_ops::)?(\w+)(?:::call|,)"
)


def torch_kernels_by_symbol(package: Path) -> dict[str, dict[str, set[str]]]:
    """Return the names on each list of torch's presets, from the symbols in its library.

    The library is not loaded: one for a GPU does not load without a GPU. The function needs `nm`,
    from binutils.
    """
    library = package / "lib/libtorch_cpu.so"
    symbols = subprocess.run(
        ["nm", "-C", str(library)], capture_output=True, text=True, check=True
    ).stdout
    found: dict[str, dict[str, set[str]]] = {name: defaultdict(set) for name in _DEVICES.values()}
    for policy, device, name in _KERNEL.findall(symbols):
        if int(device) in _DEVICES:
            found[_DEVICES[int(device)]][_BY_POLICY[int(policy)]].add(
                _without_overload(package, name)
            )
    if not all(found.values()):
        raise ValueError(f"{library} has no symbols of autocast kernels")
    return found


def _without_overload(package: Path, name: str) -> str:
    """Return the operator of a name with an overload, such as `sum_dim_IntList`.

    Each operator has a header, which shows where the operator's name ends.
    """
    words = name.split("_")
    prefixes = ("_".join(words[:count]) for count in range(len(words), 0, -1))
    return next(
        prefix for prefix in prefixes if (package / f"include/ATen/ops/{prefix}_ops.h").is_file()
    )


def paddle_lists(package: Path) -> dict[str, set[str]]:
    """Return the sets that `paddle/amp/amp_lists.py` assigns to names, also those from `A | B`."""
    source = package / "amp/amp_lists.py"
    sets: dict[str, set[str]] = {}

    def value(node: ast.expr) -> set[str]:
        match node:
            case ast.Set():
                return {ast.literal_eval(item) for item in node.elts}
            case ast.Name():
                return sets[node.id]
            case ast.BinOp(op=ast.BitOr()):
                return value(node.left) | value(node.right)
        raise AssertionError(f"{source} holds something new: {ast.unparse(node)}")

    for node in ast.parse(source.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Name):
            sets[target.id] = value(node.value)
    return sets


def mindspore_lists(package: Path) -> dict[str, set[str]]:
    """Return the AMP lists of `mindspore/train/amp.py`.

    Cells are spelled `nn.Dense`; primitives have only their names.
    """
    tree = ast.parse((package / "train/amp.py").read_text("utf-8"))
    lists = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
            items = [ast.unparse(item).split(".") for item in node.value.elts]
            lists[ast.unparse(node.targets[0])] = {
                f"nn.{i[-1]}" if i[0] == "nn" else i[-1] for i in items
            }
    function = next(
        n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "auto_mixed_precision"
    )
    documented = re.search(
        r"`promote_list` are:\s*((?:``\w+``[,\s]*)+)", ast.get_docstring(function) or ""
    )
    assert documented, "mindspore.amp.auto_mixed_precision no longer documents its promote_list"
    # The private name is the compiler's, for the primitive `Cross`.
    lists["promote"] = set(re.findall(r"``(\w+)``", documented[1])) - {"_PyboostCrossPrim"}
    return lists


def tensorflow_lists(package: Path) -> dict[str, dict[str, set[str]]]:
    """Return grappler's lists from its header, for CUDA and for oneDNN in bfloat16.

    For CUDA every condition on a version counts as true.
    """
    header = package / "include/tensorflow/core/grappler/optimizers/auto_mixed_precision_lists.h"
    text = header.read_text("utf-8")
    tensor_lists = set(re.findall(r'"(TensorList\w+)"', text))
    text = re.sub(r"if \(use_onednn_\) \{.*?\n    \}", "", text, flags=re.DOTALL)
    classes = dict(
        re.findall(r"^class (AutoMixedPrecisionLists\w+)(.*?)^};", text, re.DOTALL | re.MULTILINE)
    )
    found: dict[str, dict[str, set[str]]] = {}
    for name, body in classes.items():
        for key in ("Allow", "Infer", "Deny", "Clear"):
            method = re.search(rf"{key}List\(\) override \{{(.*?)\n  \}}\n", body, re.DOTALL)
            assert method, f"{header.name} no longer defines {name}.{key}List"
            names = {
                word
                for word in re.findall(r'"(\w+)"', method[1])
                if not re.fullmatch(r"[A-Z]+LIST", word)
            }
            found.setdefault(name, {})[key.lower()] = names | (
                tensor_lists if key == "Clear" else set()
            )
    return {
        "cuda": found["AutoMixedPrecisionListsFp16"],
        "onednn": found["AutoMixedPrecisionListsMkl"],
    }
