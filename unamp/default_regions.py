"""The region that a library opens where its user has opened none."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from unamp._compiler_marks import not_converted
from unamp.adapter import DEVICES, registry
from unamp.adapter.arguments import leaves
from unamp.policy import Policy
from unamp.regions import check_policy, current_policy, limited_region


@not_converted
def default_region(policy: Policy, *, like: Any) -> AbstractContextManager[object]:
    """Return a region for a policy, or a null context where one is in force for the tensors.

    For libraries with a default policy. A user overrides it with a region, also with one that
    switches mixed precision off, or with the framework's own AMP. The region is limited to the
    tensors' framework, and to their device where all are on the same.

    Args:
        policy: the default.
        like: a tensor, or tensors of one framework in lists, tuples and dictionaries.

    Raises:
        TypeError: where ``policy`` is not a `Policy`, or no tensor is of an imported framework.
        ValueError: for tensors of several frameworks.
        FrameworkNotSupported: for tensors of a framework that no region can cover.
    """
    check_policy(policy)
    found = list(_places(like))
    if not found:
        given = type(like).__name__
        raise TypeError(
            "like must be a tensor of an imported framework, "
            f"or tensors in lists, tuples or dictionaries; got {given}"
        )
    frameworks, devices = dict.fromkeys(f for f, _ in found), dict.fromkeys(d for _, d in found)
    if len(frameworks) > 1:
        raise ValueError(
            f"like holds tensors of several frameworks: {', '.join(frameworks)}; "
            "a region is opened for one"
        )
    framework = found[0][0]
    for device in devices:
        if current_policy(framework, device if device in DEVICES else None) is not None:
            return nullcontext()
    only = found[0][1] if len(devices) == 1 and found[0][1] in DEVICES else None
    return limited_region(policy, framework, only)


def _places(value: object) -> Iterator[tuple[str, str]]:
    """Yield the framework and the device of every tensor in a value."""
    for each in leaves(value):
        if (adapter := registry.owner(each, "tensor")) is not None:
            yield adapter.framework, adapter.device_of(each)
