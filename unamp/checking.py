"""Check whether a policy can be followed, before anything runs under it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from unamp import amp_warnings
from unamp.adapter import DEVICES, Adapter, How, Support, registry
from unamp.adapter.registered import how
from unamp.dtypes import FLOAT32
from unamp.errors import FrameworkNotSupported, NotExpressible, unknown
from unamp.policy import Policy
from unamp.regions import check_policy
from unamp.vocabulary import vocabulary


class Answer(NamedTuple):
    """How one framework follows a policy on one device.

    Attributes:
        framework, version, device: the framework, its version, and the device.
        support: how the device computes in the policy's dtype.
        how: for each operation that the framework has, how the policy's rule is carried out.
        refused: why the policy cannot be followed there; empty where it can.
    """

    framework: str
    version: str
    device: str
    support: Support
    how: Mapping[str, How]
    refused: str = ""

    def operations(self, how: How) -> tuple[str, ...]:
        """Return the operations that are carried out in one way."""
        return tuple(op for op, carried_out in self.how.items() if carried_out is how)

    def __str__(self) -> str:
        where = f"{self.framework} {self.version}, {self.device}"
        if self.refused:
            return f"{where}: refused: {self.refused}"
        counts = ", ".join(f"{n} {how.value}" for how in How if (n := len(self.operations(how))))
        return f"{where}: {self.support.value}; operations: {counts}"


class Checked(NamedTuple):
    """The findings of `check`: an answer for every framework and device that was asked about.

    Attributes:
        policy: the policy.
        answers: the answers.
    """

    policy: Policy
    answers: tuple[Answer, ...]

    @property
    def refused(self) -> tuple[Answer, ...]:
        """The answers with a reason why the policy cannot be followed."""
        return tuple(answer for answer in self.answers if answer.refused)

    @property
    def ok(self) -> bool:
        """Return whether the policy can be followed everywhere that was asked about."""
        return not self.refused

    def require(self) -> None:
        """Raise an error where the policy cannot be followed.

        Raises:
            NotExpressible: the message names every framework and device that cannot, and why.
        """
        if self.refused:
            raise NotExpressible("; ".join(map(str, self.refused)))

    def __str__(self) -> str:
        return "\n".join(map(str, self.answers))


def check(
    policy: Policy,
    *,
    framework: str | None = None,
    device: str | None = None,
    compiled: bool = False,
) -> Checked:
    """Return whether and how each framework can follow a policy on each device.

    Nothing is computed.

    Args:
        policy: the policy.
        framework: one imported framework; None asks about all imported ones, and warns of those
            that no region can cover.
        device: ``"cpu"``, or ``"gpu"`` or ``"cuda"``; None asks about all devices that are there.
        compiled: ask about functions that the framework's compiler traces (`torch.compile`,
            `paddle.jit.to_static`, `mindspore.jit`, `tf.function`), too.

    Raises:
        TypeError: where ``policy`` is not a `Policy`.
        ValueError: for an unknown framework or device.
        FrameworkNotSupported: where the named framework is not installed, not imported or not
            suitable, and where none is named and none imported that is suitable.
    """
    check_policy(policy)
    device = "gpu" if device == "cuda" else device
    if device is not None and device not in DEVICES:
        raise ValueError(unknown("device", device, DEVICES))
    adapters = (
        registry.adapters_in_use() if framework is None else (registry.adapter_for(framework),)
    )
    if framework is None:
        amp_warnings.left_out(registry.unsuitable(), adapters)
        if not adapters:
            raise FrameworkNotSupported(
                "no framework is imported that could be asked; "
                "import one before (unamp imports none)"
            )
    asked = (
        (adapter, each)
        for adapter in adapters
        for each in ([device] if device else adapter.devices())
    )
    return Checked(
        policy, tuple(_answer(adapter, policy, each, compiled) for adapter, each in asked)
    )


def _answer(adapter: Adapter, policy: Policy, device: str, compiled: bool) -> Answer:
    ways = {
        op: way
        for op in vocabulary()
        if (way := how(adapter, op, policy, device)) is not How.ABSENT
    }
    support = Support.NATIVE if policy.dtype == FLOAT32 else adapter.support(device, policy.dtype)
    refused = ""
    if device not in adapter.devices():
        refused = f"there is no such device here; there is: {', '.join(adapter.devices())}"
    else:
        try:
            adapter.prepare(policy, device)
            if compiled:
                adapter.check_compiled(policy, device)
        except NotExpressible as error:
            refused = str(error)
    return Answer(adapter.framework, adapter.version(), device, support, ways, refused)
