"""Arguments of tools that convert PyTorch networks: operators and layers to keep in float32."""

from __future__ import annotations

from collections.abc import Mapping
from pprint import pformat

from unamp._data import load_table
from unamp.exporting.policies import ExportLists, layer_expressions, low_dtype, sorted_types
from unamp.policy import Policy, Rule
from unamp.precision import Precision
from unamp.vocabulary import vocabulary


def torch_tensorrt(precision: Precision) -> ExportLists:
    """Return the arguments of `torch_tensorrt.dynamo.compile`."""
    low = low_dtype(precision, "torch-tensorrt", ("bfloat16", "float16"))
    layers, unsaid = layer_expressions(precision)
    kept, following = _aten(precision.policy)
    if following:
        some = (
            ", ".join(op for op in ("add", "mul", "relu", "cat") if op in following) or following[0]
        )
        unsaid.append(
            f"{len(following)} operations run in the dtype of their inputs ({some} among them); "
            f"torch-tensorrt runs in {low} whatever is not excluded"
        )
    arguments: dict[str, object] = {
        "use_explicit_typing": True,
        "enable_autocast": True,
        "autocast_low_precision_type": low,
        "autocast_excluded_nodes": layers,
        "autocast_excluded_ops": kept,
        "autocast_max_output_threshold": float("inf"),
    }
    code = _TORCH_TENSORRT.format(operators=_listed(kept), layers=_listed(layers), low=low)
    return ExportLists(
        "torch-tensorrt", {**arguments, "autocast_max_output_threshold": "inf"}, code, unsaid
    )


#: Operators are compared by their qualified names, which have the overload at the end.
_TORCH_TENSORRT = """\
import torch
import torch_tensorrt

OPERATORS = {operators}
LAYERS = {layers}

compiled = torch_tensorrt.dynamo.compile(
    exported_program,
    inputs=inputs,
    use_explicit_typing=True,
    enable_autocast=True,
    autocast_low_precision_type=torch.{low},
    autocast_excluded_nodes=set(LAYERS),
    autocast_excluded_ops={{
        f"torch.ops.aten.{{name}}.{{overload}}"
        for name in OPERATORS
        if hasattr(torch.ops.aten, name)
        for overload in getattr(torch.ops.aten, name).overloads()
    }},
    autocast_max_output_threshold=float("inf"),
)
"""


def _aten(policy: Policy) -> tuple[list[str], list[str]]:
    """Return the operators that stay in float32, and the operations in a dtype of their inputs."""
    kept, following = [], []
    for op in vocabulary().values():
        rule = policy.decide(op.name)
        if rule in (Rule.FP32, Rule.BANNED):
            kept += [name for name in op.spellings.get("torch", ()) if name.isidentifier()]
        elif rule.leaves_agreeing and not op.keeps_its_meaning and not op.is_cast:
            following.append(op.name)
    return sorted(set(kept)), following


def coremltools(precision: Precision) -> ExportLists:
    """Return the selector of `coremltools.transform.FP16ComputePrecision`."""
    low_dtype(precision, "coremltools", ("float16",))
    layers, unsaid = layer_expressions(precision)
    types = sorted_types(precision.policy, _mil_types())
    if types.mixed:
        which = ", ".join(types.mixed)
        unsaid.append(
            "the policy says different things for what they may be; "
            f"here they stay in float32: {which}"
        )
    arguments: dict[str, object] = {
        "float16": types.low,
        "following": types.following,
        "float32_layers": layers,
    }
    code = _COREMLTOOLS.format(
        head="import re\n\n" if layers else "",
        scope="from coremltools.converters.mil.mil.scope import ScopeSource\n" if layers else "",
        low=_listed(types.low),
        following=_listed(types.following),
        layers=_LAYERS.format(layers=_listed(layers)) if layers else "",
        within='    if op.op_type != "const" and in_float32_layer(op):\n        return False\n'
        if layers
        else "",
    )
    return ExportLists("coremltools", arguments, code, unsaid)


_COREMLTOOLS = '''\
{head}import coremltools as ct
{scope}
FLOAT16 = {low}
FOLLOWING = {following}
{layers}

def in_float16(op):
    """Return whether an operation of a program runs in float16."""
{within}    if op.op_type not in FOLLOWING:
        return op.op_type in FLOAT16
    given = [each for value in op.inputs.values() for each in (value if isinstance(value, (list, tuple)) else [value])]
    computed = [each for each in given if each.is_tensor_or_scalar_of(dtype="fp32") and each.val is None]
    return bool(computed) and all(map(came_in_float16, computed))


def came_in_float16(value):
    """Return whether a value was float16 before it was cast."""
    return value.op is not None and value.op.op_type == "cast" and value.op.x.is_tensor_or_scalar_of(dtype="fp16")


compute_precision = ct.transform.FP16ComputePrecision(op_selector=in_float16)
'''  # noqa: E501 - code for the user's own file

#: A traced program names a layer without the lists that hold it, which are never called.
_LAYERS = '''\
LAYERS = {layers}
CONTAINERS = ("ModuleList", "ModuleDict")


def name_in_program(name):
    """Return the name that a program traced from the network has for a layer."""
    parts = name.split(".")
    above = [network.get_submodule(".".join(parts[: place + 1])) for place in range(len(parts))]
    return ".".join(part for part, layer in zip(parts, above) if type(layer).__name__ not in CONTAINERS)


names = {{True: set(), False: set()}}
for name, layer in network.named_modules():
    if type(layer).__name__ not in CONTAINERS:
        names[any(re.match(pattern, name) for pattern in LAYERS)].add(name_in_program(name))
if both := names[True] & names[False]:
    raise ValueError(f"the program cannot tell layers in float32 from others of its names: {{sorted(both)}}")


def in_float32_layer(op):
    """Return whether an operation is in a layer that stays in float32."""
    path = op.scopes.get(ScopeSource.TORCHSCRIPT_MODULE_NAME)
    if path is None:
        raise ValueError(f"{{op.name}} is in no layer that has a name: convert what torch.jit.trace returns")
    return ".".join(path[:-1]) in names[True]

'''  # noqa: E501 - likewise


def _mil_types() -> Mapping[str, tuple[str, ...]]:
    table = load_table("coreml.toml")
    named = {
        kind: (ops,) if isinstance(ops, str) else tuple(ops)
        for kind, ops in table["operators"].items()
    }
    return {**dict.fromkeys(table["unnamed"], ()), **named}


def _listed(value: object) -> str:
    return pformat(value, width=110, compact=True)
