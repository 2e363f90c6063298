"""The presets agree with the frameworks' own tables in the installed packages.

No framework is imported here. Headers and Python files are read as text; a subprocess asks torch
for the facts that only a running torch knows. A new release that changes a list fails here, and the
message names the operations.
"""

from __future__ import annotations

import functools
import json
import tomllib
from collections.abc import Iterable
from importlib import metadata, resources

import pytest
from commanded import invoke
from installed import place
from names_there import FRAMEWORKS, ask, names_in
from official_lists import (
    FP32_MACROS,
    mindspore_lists,
    paddle_lists,
    spellings,
    tensorflow_lists,
    torch_macros,
)
from preset_versions import read_folder

from unamp.adapter.versions import major_minor

DATA = resources.files("unamp").joinpath("data")

DISTRIBUTIONS = {
    "torch": ("torch",),
    "paddle": ("paddlepaddle", "paddlepaddle-gpu"),
    "mindspore": ("mindspore",),
    "tensorflow": ("tensorflow", "tensorflow-cpu", "tensorflow-intel"),
}


#: Operations on torch's lists that are younger than the presets' version, by torch's version. unamp
#: leaves them to torch's own autocast. (2.15: for CPU and CUDA alike, in float32.)
NEWER = {"linalg_matrix_sqrth": (2, 14)}

#: Operations that torch has removed, by the version without them.
GONE = {"cholesky": (2, 15), "qr": (2, 15)}


# --------------------------------------------------------------------------------------------------
# Our side: presets, and the way from a framework's word to the canonical name
# --------------------------------------------------------------------------------------------------


@functools.cache
def preset(name: str) -> dict:
    return tomllib.loads(DATA.joinpath("presets", f"{name}.toml").read_text("utf-8"))


def canonical(framework: str, official: Iterable[str]) -> set[str]:
    """Return the canonical names of a framework's own names; fail where one is unknown."""
    official, known = set(official), spellings(framework)
    unknown = sorted(official - known.keys())
    assert not unknown, (
        f"{framework} {installed_version(framework)} lists names the vocabulary lacks: {unknown}"
    )
    return {known[name] for name in official}


def assert_same(framework: str, preset_name: str, key: str, official: Iterable[str]) -> None:
    """Check that the preset's list is the official one, apart from its `implied` operations."""
    data = preset(preset_name)
    ours, theirs = (
        set(data.get(key, ())) - data.get("implied", {}).keys(),
        canonical(framework, official),
    )
    assert ours == theirs, (
        f"preset {preset_name!r}, list {key!r}, against {framework} {installed_version(framework)} "
        f"(written for {data['version']}): missing in the preset {sorted(theirs - ours)}; "
        f"only in the preset {sorted(ours - theirs)}"
    )


# --------------------------------------------------------------------------------------------------
# Their side: the installed packages
# --------------------------------------------------------------------------------------------------


def installed_version(framework: str) -> str:
    for distribution in DISTRIBUTIONS[framework]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return "(unknown version)"


def torch_since(versions: dict[str, tuple[int, int]]) -> set[str]:
    """Return the names whose version the installed torch has reached."""
    return {
        name for name, since in versions.items() if major_minor(installed_version("torch")) >= since
    }


# Runs in a process of its own. A kernel on an Autocast key first casts, then calls the operator. So
# the casts that a dispatch mode sees first tell the kernel's category, even for meaningless
# arguments. Fake tensors stand for tensors of an absent device.
TORCH_PROBE = """
import contextlib, itertools, json, sys, torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

class Stop(Exception):
    pass

class Casts(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.dtypes = []
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.prim.device.default:
            return func(*args, **(kwargs or {}))
        if func is not torch.ops.aten._to_copy.default:
            raise Stop
        self.dtypes.append((kwargs or {}).get("dtype"))
        return func(*args, **(kwargs or {}))

def value(argument, dtypes, device):
    kind = str(argument.type)
    if "Tensor" in kind:
        one = lambda: torch.ones(2, 2, dtype=next(dtypes), device=device)
        return [one(), one()] if kind.startswith("List") else one()
    if argument.has_default_value():
        return argument.default_value
    if kind.startswith("Optional"):
        return None
    if kind.startswith("List"):
        return [False if "bool" in kind else 1] * (argument.N or 2)
    return {"float": 1.0, "bool": False, "str": "fro"}.get(kind, 1)

def casts(op, device, *dtypes):
    dtypes, arguments = itertools.cycle(dtypes), op._schema.arguments
    with contextlib.nullcontext() if device == "cpu" else FakeTensorMode():
        args = [value(a, dtypes, device) for a in arguments if not a.kwarg_only]
        kwargs = {a.name: value(a, dtypes, device) for a in arguments if a.kwarg_only and not a.has_default_value()}
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, torch.bfloat16)
        try:
            with Casts() as mode:
                op(*args, **kwargs)
        except Exception:  # arguments that make no sense: the casts were made before
            pass
        finally:
            torch.set_autocast_enabled(device, False)
    return mode.dtypes

def category(name, device):
    packet, _, overload = name.removeprefix("aten::").partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")
    wide, low = torch.float32, torch.bfloat16
    if low in casts(op, device, wide):
        return "allow"
    return "deny" if wide in casts(op, device, low) else "promote" if wide in casts(op, device, low, wide) else "unknown"

registered = torch._C._dispatch_get_registrations_for_dispatch_key
kernels = {
    device: {name: category(name, device) for name in registered(key)}
    for device, key in (("cpu", "AutocastCPU"), ("mps", "AutocastMPS"))
}
kernels |= {"cuda": registered("AutocastCUDA"), "xpu": registered("AutocastXPU")}
"""  # noqa: E501

# It goes on with the same for whole functions that reach listed operators only from inside. Fake
# tensors stand for a GPU's.
TORCH_IMPLIED_PROBE = """
import torch.nn.functional as F

def called_on(device):
    # cov and corrcoef read values, which fake tensors on a GPU do not have.
    return {
        "chain_matmul": lambda x: torch.chain_matmul(x, x, x),
        "corrcoef": torch.corrcoef if device == "cpu" else None,
        "cov": torch.cov if device == "cpu" else None,
        "cross_entropy": lambda x: F.cross_entropy(x, torch.zeros(4, dtype=torch.long, device=x.device)),
        "cumulative_trapezoid": torch.cumulative_trapezoid,
        "einsum": lambda x: torch.einsum("ij,jk->ik", x, x),
        "gumbel_softmax": F.gumbel_softmax,
        "inner": lambda x: torch.inner(x, x),
        "interpolate": lambda x: F.interpolate(x.reshape(1, 1, 4, 4), scale_factor=2),
        "linalg_multi_dot": lambda x: torch.linalg.multi_dot([x, x, x]),
        "linalg_norm": torch.linalg.norm,
        "local_response_norm": lambda x: F.local_response_norm(x.reshape(1, 4, 4), 2),
        "lp_pool1d": lambda x: F.lp_pool1d(x.reshape(1, 4, 4), 2.0, 2),
        "lp_pool2d": lambda x: F.lp_pool2d(x.reshape(1, 1, 4, 4), 2.0, 2),
        "lp_pool3d": lambda x: F.lp_pool3d(x.expand(4, 4, 4).reshape(1, 1, 4, 4, 4), 2.0, 2),
        "matrix_power": lambda x: torch.matrix_power(x, 3),
        "multilabel_soft_margin_loss": lambda x: F.multilabel_soft_margin_loss(x, x),
        "normalize": F.normalize,
        "pairwise_distance": lambda x: F.pairwise_distance(x, x),
        "softmin": lambda x: F.softmin(x, dim=1),
        "trapezoid": torch.trapezoid,
        "triplet_margin_with_distance_loss": lambda x: F.triplet_margin_with_distance_loss(x, x, x),
    }

def result(call, dtype):
    with contextlib.nullcontext() if device == "cpu" else FakeTensorMode(allow_non_fake_inputs=True):
        x = torch.ones(4, 4, dtype=dtype, device=device)
        torch.set_autocast_enabled(device, True)
        torch.set_autocast_dtype(device, low)
        try:
            return call(x).dtype
        finally:
            torch.set_autocast_enabled(device, False)

def category(call):
    if result(call, torch.float32) is low:
        return "allow"
    return "deny" if result(call, low) is torch.float32 else "neither"

found = {}
for device in ("cpu", "cuda", "mps"):
    low = torch.bfloat16 if device == "cpu" else torch.float16
    found[device] = {name: category(call) for name, call in called_on(device).items() if call}
json.dump({"kernels": kernels, "implied": found}, sys.stdout)
"""  # noqa: E501


@functools.cache
def torch_facts() -> dict:
    return ask("torch", TORCH_PROBE + TORCH_IMPLIED_PROBE)


def torch_kernels() -> dict:
    return torch_facts()["kernels"]


#: All frameworks are read at once.
versions_in = functools.cache(read_folder)


def packet(kernel: str) -> str:
    return kernel.removeprefix("aten::").partition(".")[0]


# --------------------------------------------------------------------------------------------------
# The comparison
# --------------------------------------------------------------------------------------------------


def test_torch_cuda_follows_the_header() -> None:
    macros = torch_macros(place("torch"))
    assert_same("torch", "torch-cuda", "allow", macros["LOWER_PRECISION_FP"])
    assert_same("torch", "torch-cuda", "deny", set().union(*(macros[key] for key in FP32_MACROS)))
    assert_same("torch", "torch-cuda", "promote", macros["PROMOTE"])


def test_torch_cuda_names_every_registered_kernel() -> None:
    """The header has no macro for cuDNN's convolutions and for the banned operation.

    The dispatcher knows them, too.
    """
    beyond_the_macros = {packet(kernel) for kernel in torch_kernels()["cuda"]} - set().union(
        *torch_macros(place("torch")).values()
    )
    in_every_build = {"cudnn_convolution", "cudnn_convolution_transpose", "binary_cross_entropy"}
    assert beyond_the_macros - {"_cudnn_rnn"} == in_every_build | torch_since(NEWER)
    assert_same("torch", "torch-cuda", "banned", {"binary_cross_entropy"})


@pytest.mark.parametrize("device", ["cpu", "mps"])
@pytest.mark.parametrize("key", ["allow", "deny", "promote"])
def test_torch_follows_the_registered_kernels(key: str, device: str) -> None:
    categories = torch_kernels()[device]
    assert set(categories.values()) == {"allow", "deny", "promote"}
    official = {packet(kernel) for kernel, found in categories.items() if found == key}
    assert_same("torch", f"torch-{device}", key, official - NEWER.keys())
    newer = torch_since(NEWER) if (key, device) == ("deny", "cpu") else set()
    assert official & NEWER.keys() == newer


def test_xpu_has_the_lists_of_cuda() -> None:
    assert set(torch_kernels()["cuda"]) - set(torch_kernels()["xpu"]) <= {
        "aten::cudnn_convolution",
        "aten::cudnn_convolution_transpose",
        "aten::_cudnn_rnn",
    }
    assert set(torch_kernels()["xpu"]) <= set(torch_kernels()["cuda"])


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_what_torch_implies(device: str) -> None:
    """Check operations that no list names, but that torch composes of listed ones."""
    data = preset(f"torch-{device}")
    category = {op: key for key in ("allow", "deny") for op in data[key]}
    probed = torch_facts()["implied"][device]
    listed = {op: found for op, found in probed.items() if op in category}
    assert {op: category[op] for op in listed} == listed, (
        f"torch {installed_version('torch')} on {device}"
    )
    unlisted = sorted(
        op for op, found in probed.items() if op not in category and found != "neither"
    )
    assert not unlisted, (
        f"preset torch-{device} leaves out what torch "
        f"{installed_version('torch')} implies: {unlisted}"
    )


def test_paddle_follows_amp_lists() -> None:
    lists = paddle_lists(place("paddle"))
    assert_same("paddle", "paddle", "allow", lists["FP16_WHITE_LIST"])
    assert_same("paddle", "paddle", "allow_bfloat16", lists["BF16_WHITE_LIST"])
    assert lists["FP16_BLACK_LIST"] == lists["BF16_BLACK_LIST"], (
        "the preset has one black list for both dtypes"
    )
    assert_same("paddle", "paddle", "deny", lists["FP16_BLACK_LIST"] | lists["EXTRA_BLACK_LIST"])
    assert_same("paddle", "paddle", "deny_o2", lists["EXTRA_BLACK_LIST"])


def test_mindspore_follows_its_amp_lists() -> None:
    lists = mindspore_lists(place("mindspore"))
    assert_same("mindspore", "mindspore", "allow", lists["AMP_WHITE_LIST"])
    assert_same("mindspore", "mindspore", "deny_o2", lists["AMP_BLACK_LIST"])
    assert_same("mindspore", "mindspore", "allow_auto", lists["AMP_AUTO_WHITE_LIST"])
    assert_same("mindspore", "mindspore", "deny_auto", lists["AMP_AUTO_BLACK_LIST"])
    assert_same("mindspore", "mindspore", "promote_auto", lists["promote"])


@pytest.mark.parametrize("key", ["allow", "infer", "deny", "clear"])
def test_tensorflow_follows_grappler(key: str) -> None:
    lists = tensorflow_lists(place("tensorflow"))
    assert_same("tensorflow", "tensorflow", key, lists["cuda"][key])
    assert_same("tensorflow", "tensorflow", f"{key}_bfloat16", lists["onednn"][key])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_versions_of_presets_are_what_the_packages_list(framework: str) -> None:
    found = versions_in(place(framework).parent)
    ours = {
        name: versions for name, versions in found.items() if preset(name)["framework"] == framework
    }
    assert ours
    for name, versions in ours.items():
        for minor, entry in versions.items():
            kept = tomllib.loads(
                DATA.joinpath("presets/versions", f"{name}.toml").read_text("utf-8")
            )[minor]
            sources = ("version", "source")  # these differ between patch releases
            assert {k: v for k, v in kept.items() if k not in sources} == {
                k: v for k, v in entry.items() if k not in sources
            }


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_every_spelling_exists(framework: str) -> None:
    """Spellings on the official lists are excepted: the package may lack their operation."""
    listed = set()
    if framework == "paddle":
        listed = set().union(*paddle_lists(place("paddle")).values())
    if framework == "tensorflow":
        listed = {
            name
            for lists in tensorflow_lists(place("tensorflow")).values()
            for names in lists.values()
            for name in names
        }
    gone = torch_since(GONE) if framework == "torch" else set()
    absent, _ = names_in(framework)
    unknown = sorted(absent - listed - gone)
    assert not unknown, f"{framework} {installed_version(framework)} does not have: {unknown}"


def test_the_default_follows_torch_cuda_wherever_that_speaks() -> None:
    """Products, a sum, positions, variances and bans are excepted.

    torch promotes the products and the sum; it computes the positions and variances with products.
    """
    ours, theirs = preset("unamp"), preset("torch-cuda")
    assert set(theirs["allow"]) - set(ours["allow"]) == {"affine_grid", "corrcoef", "cov"}
    assert {*theirs["deny"], *theirs["banned"]} <= set(ours["deny"])
    assert set(theirs["promote"]) - set(ours["promote"]) == {"bilinear", "scatter_add", "tensordot"}
    assert set(ours["promote"]) <= set(theirs["promote"])
    assert ours["banned"] == []


# --------------------------------------------------------------------------------------------------
# What `unamp diff` says
# --------------------------------------------------------------------------------------------------


#: Groups of operations that no level changes: without a list, they are left as they are, not
#: widened.
KEEP_THEIR_MEANING = {"shape", "creation", "random", "cast", "comparison"}


def test_diff_lists_exactly_what_the_official_lists_of_paddle_and_torch_disagree_on() -> None:
    """The expected differences come from the installed packages' own tables.

    Operations that our presets add (`implied`, a ban) are left aside. At O1, torch's promote list
    and no list mean the same, except for operations that only move data.
    """
    paddle, macros = paddle_lists(place("paddle")), torch_macros(place("torch"))
    groups = {
        op: entry["group"]
        for op, entry in tomllib.loads(DATA.joinpath("vocabulary.toml").read_text("utf-8"))[
            "ops"
        ].items()
    }
    official = {
        "paddle": {
            "low": canonical("paddle", paddle["FP16_WHITE_LIST"]),
            "float32": canonical("paddle", paddle["FP16_BLACK_LIST"] | paddle["EXTRA_BLACK_LIST"]),
        },
        "torch-cuda": {
            "low": canonical("torch", macros["LOWER_PRECISION_FP"]),
            "float32": canonical("torch", set().union(*(macros[key] for key in FP32_MACROS))),
            "widest": canonical("torch", macros["PROMOTE"]),
        },
    }

    def rule(name: str, op: str) -> str:
        otherwise = "untouched" if groups[op] in KEEP_THEIR_MEANING else "widest"
        return next((rule for rule, listed in official[name].items() if op in listed), otherwise)

    named = {op for lists in official.values() for listed in lists.values() for op in listed}
    rules = {op: (rule("paddle", op), rule("torch-cuda", op)) for op in named}
    own = {
        op for name in official for key in ("implied", "banned") for op in preset(name).get(key, ())
    }
    changes = json.loads(invoke("diff", "paddle", "torch-cuda", "--json").stdout)["operations"]
    said = {
        op: (change["before"]["rule"], change["after"]["rule"]) for op, [change] in changes.items()
    }
    differing = {op: both for op, both in rules.items() if both[0] != both[1] and op not in own}
    assert {op: both for op, both in said.items() if op not in own} == differing
    assert len(differing) > 40
