"""The framework under test, opened once in its worker process."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import unamp
from unamp.adapter import Adapter, NamesDevices, Operations, Way
from unamp.adapter.absent_devices import AbsentDevice
from unamp.adapter.registry import adapter_for
from unamp.adapter.tensor_kinds import TensorKind
from unamp.errors import AdapterError
from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.regions import Region
from unamp.registration import Example, examples
from unamp.vocabulary import vocabulary

__all__ = ["ABSENT", "READABLE", "SECOND", "Subject", "WithExamples", "is_absent", "policy_name"]

#: A device beside the CPU that a framework can be given wherever there is one; see
#: `Subject.present`.
SECOND = "second"

#: The devices that are not here and that a run reads where none is named: one for each framework
#: that can be read.
ABSENT = ("lowered:cuda", "fake:cuda", "placed:gpu")

#: The devices that are not here which some adapter knows how to read.
READABLE = (
    *("lowered:cuda", "lowered:rocm", "lowered:tpu"),  # JAX lowers for them
    *("fake:cuda", "fake:mps", "fake:xpu", "fake:hpu"),  # PyTorch has fake tensors on them
    "placed:gpu",  # TensorFlow traces graphs that are placed there
)


def is_absent(device: str) -> bool:
    """Return whether a device is absent: its decisions are read, and nothing is run."""
    return device in READABLE


def policy_name(policy: Policy) -> str:
    """Return a policy's short name in results: level, dtype and preset."""
    return f"{policy.level} {policy.dtype} {policy.preset}"


class WithExamples:
    """A framework's operations, and beside them those that users registered.

    Attributes:
        examples: the example calls of registered operations.
    """

    def __init__(self, operations: Operations, examples: Mapping[str, Example]) -> None:
        self._operations = operations
        self.examples = examples

    def __getattr__(self, name: str) -> Any:
        return getattr(self._operations, name)

    def names(self) -> frozenset[str]:
        """See `Operations.names`."""
        return self._operations.names() | self.examples.keys()

    def __getitem__(self, op: str) -> Callable[..., Any]:
        """See `Operations.__getitem__`."""
        return self.examples[op].function if op in self.examples else self._operations[op]


@dataclass(frozen=True)
class Subject:
    """A framework on a device.

    Args:
        framework: the framework's name, which is its package's, too.
        device: ``"cpu"``, ``"gpu"``, `SECOND`, or the name of an `AbsentDevice`.

    Raises:
        ModuleNotFoundError: where the framework is not installed.
        unamp.FrameworkNotSupported: where its version does not suit the adapter.
    """

    framework: str
    device: str

    @cached_property
    def adapter(self) -> Adapter:
        """The adapter; the framework is imported here and nowhere else in the suite."""
        importlib.import_module(self.framework)
        return adapter_for(self.framework)

    @cached_property
    def operations(self) -> Operations:
        """The framework's operations, with those that users registered with example calls."""
        known, registered = self.adapter.operations(), examples(self.framework)
        if hasattr(known, "set_up"):
            known.set_up()
        return cast(Operations, WithExamples(known, registered)) if registered else known

    @cached_property
    def ways(self) -> Mapping[str, Way]:
        """The ways in which the framework runs functions, by name.

        An adapter without ``Operations.ways`` has none.

        Raises:
            AdapterError: where two have one name.
        """
        return self._listed("ways", "ways")

    @cached_property
    def tensor_kinds(self) -> Mapping[str, TensorKind]:
        """The kinds of tensor that are not one dense array, by name.

        An adapter without ``Operations.tensor_kinds`` has none.

        Raises:
            AdapterError: where two have one name.
        """
        return self._listed("tensor_kinds", "kinds of tensor")

    @cached_property
    def absent_devices(self) -> Mapping[str, AbsentDevice]:
        """The absent devices whose programs can be read, by name.

        See ``Operations.absent_devices``.
        """
        return self._listed("absent_devices", "absent devices")

    def _listed(self, name: str, what: str) -> dict[str, Any]:
        """Return the list that a function of the operations gives, by name.

        It is empty without such a function.
        """
        listed: Iterable[Any] = getattr(self.operations, name, tuple)()
        if twice := [
            each for each, count in Counter(one.name for one in listed).items() if count > 1
        ]:
            raise AdapterError(f"{self.framework}: two {what} have the name {twice[0]!r}")
        return {one.name: one for one in listed}

    def devices(self) -> tuple[str, ...]:
        """Return the devices that the framework has here, the second one, and absent ones.

        Absent ones are those whose programs can be read.
        """
        second = (SECOND,) if hasattr(self.operations, "make_second_device") else ()
        return (*self.adapter.devices(), *second, *self.absent_devices)

    def present(self) -> bool:
        """Return whether the device is there; the second device is made."""
        if self.device == SECOND:
            make: Callable[[], bool] = getattr(self.operations, "make_second_device", lambda: False)
            return make()
        return self.device in self.adapter.devices() or self.device in self.absent_devices

    def missing(self) -> str:
        """Return why an absent device is not read, where it is none of `absent_devices`."""
        if known := ", ".join(self.absent_devices):
            return f"{self.framework} writes programs down for {known} alone"
        why = getattr(self.operations, "unreadable", "no way is known to read it")
        return (
            f"of what {self.framework} would run on a device that is not here nothing is read: "
            f"{why}"
        )

    def spelled(self) -> list[str]:
        """Return the operations that the framework has, by the vocabulary or by its adapter.

        Of the operations that users registered, it returns those with an example call.
        """
        bound = self.operations.names()
        return [
            op.name
            for op in vocabulary().values()
            if op.name in bound or (self.framework in op.spellings and not op.is_added)
        ]

    def region(self, policy: Policy) -> AbstractContextManager[object]:
        """Return a region for a policy on this framework and device."""
        if self.device in self.absent_devices:
            return self.region_for(policy, self.absent_devices[self.device])
        chosen = {
            name: getattr(policy, name)
            for name in ("dtype", "enabled", "level", "allow", "deny", "preset", "promote")
        }
        return unamp.autocast(self.device, framework=self.framework, **chosen)

    def region_for(self, policy: Policy, device: AbsentDevice) -> AbstractContextManager[object]:
        """Return a region for a policy on a device that is not here."""
        return Region(policy, framework=self.framework, device=device.region)

    def stated(self, policy: Policy) -> Policy:
        """Return the policy with lists of its own.

        For the preset ``native`` these are the lists that the framework follows here.
        """
        named = self.adapter.device_names() if isinstance(self.adapter, NamesDevices) else {}
        word = named.get(self.device, self.device).rpartition(":")[2]
        return policy.delegated(self.framework, word) or policy.replace(enabled=False)

    def rule(self, policy: Policy, op: str) -> Rule | None:
        """Return the rule for an operation; None where the framework decides.

        Under the preset ``native`` the framework decides about everything that the lists of its own
        AMP do not name: it has no levels, and a policy delegated to it says nothing about the rest.
        """
        stated = self.stated(policy)
        if preset(policy.preset).delegates and stated.active:
            listed = stated.reason(op)
            return listed.rule if listed.origin.startswith("preset ") else None
        return stated.decide(op)
