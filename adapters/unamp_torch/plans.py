"""From a policy to what has to be done about it in PyTorch.

PyTorch's own autocast carries out the rules that its lists contain, in C++ and at no further cost. A plan holds what is
left: for each kind of device, the operators whose rule differs, each with the action that carries the rule out.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, lru_cache
from importlib import resources

import torch

from unamp.adapter import How
from unamp.policy import Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_torch import kernels
from unamp_torch.compiling import Token, token
from unamp_torch.kernels import Action, Operator
from unamp_torch.state import CPU, CUDA, DTYPES, NATIVE_KEYS

#: Groups that `unamp.trace` does not report: they move data or make it, in whatever dtype they are told.
_NOT_TRACED = frozenset({"shape", "creation", "random", "cast"})

__all__ = ["DEVICE_TYPES", "Plan", "explicit_action", "how", "install_all", "plan"]

#: PyTorch's device type for each kind of device, and back.
DEVICE_TYPES = {"cpu": CPU, "gpu": CUDA}

_KEY_NAMES = {CPU: "AutocastCPU", CUDA: "AutocastCUDA"}

#: The preset that holds PyTorch's own lists for a device type.
_NATIVE_LISTS = {CPU: "torch-cpu", CUDA: "torch-cuda"}


@dataclass(frozen=True)
class Facts:
    """What PyTorch's operators do without being asked; `data/operators.toml` has the explanations.

    Attributes:
        promotes: operations that compute inputs of differing dtypes in the widest one by themselves.
        decomposes: operations made of others that have rules of their own.
        no_kernel: for each device type and low dtype, operations without a kernel for it, forward or backward.
    """

    promotes: frozenset[str]
    decomposes: frozenset[str]
    no_kernel: Mapping[tuple[str, str], frozenset[str]]


@cache
def facts() -> Facts:
    """The facts, read from their data file."""
    data = tomllib.loads(resources.files("unamp_torch").joinpath("data/operators.toml").read_text("utf-8"))
    return Facts(
        promotes=frozenset(data["promotes"]),
        decomposes=frozenset(data["decomposes"]),
        no_kernel={(device, dtype): frozenset(ops) for device, table in data["no_kernel"].items() for dtype, ops in table.items()},
    )


@dataclass(frozen=True, eq=False)
class Plan:
    """What is done in PyTorch for one policy.

    Attributes:
        policy: the policy.
        low: its low dtype.
        devices: the device types that it covers.
        autocast: whether native autocast is on.
        delegated: whether it is PyTorch's own AMP and nothing else (preset ``native``).
        on_cpu, on_cuda: the operators that need more than native autocast, by name, with what is done about them.
    """

    policy: Policy
    low: torch.dtype
    devices: tuple[str, ...]
    autocast: bool
    delegated: bool = False
    on_cpu: Mapping[str, Action] = field(default_factory=dict)
    on_cuda: Mapping[str, Action] = field(default_factory=dict)

    token: Token = ()

    def rule(self, op: str) -> Rule:
        """The rule in force for an operation; for PyTorch's own AMP, the rule of its lists for the first device."""
        stated = self.policy.delegated("torch", "cpu" if self.devices[0] == CPU else "gpu")
        return stated.rules[op] if stated is not None else Rule.UNTOUCHED

    @property
    def intercepts(self) -> bool:
        """Whether any operator needs a kernel of ours."""
        return bool(self.on_cpu or self.on_cuda)


@lru_cache(maxsize=256)
def plan(policy: Policy, device: str | None) -> Plan:
    """The plan for a policy on ``"cpu"``, ``"gpu"``, or (None) wherever tensors can be in this process.

    The kernels that it needs are installed with it.
    """
    covered = (DEVICE_TYPES[device],) if device else (CPU, CUDA) if torch.cuda.is_available() else (CPU,)
    low = DTYPES[policy.dtype]
    if not policy.active:
        return Plan(policy, low, covered, autocast=False)
    if preset(policy.preset).delegates:
        return Plan(policy, low, covered, autocast=True, delegated=True)
    actions = {kind: _actions(policy, kind) for kind in covered}
    kernels.install(operator for op in vocabulary() for operator in kernels.operators(op) if _needed(operator, actions))
    carried = token((policy, covered)) if any(actions.values()) else ()
    return Plan(policy, low, covered, True, on_cpu=actions.get(CPU, {}), on_cuda=actions.get(CUDA, {}), token=carried)


def install_all() -> None:
    """Install a kernel for every operator that computes something, for `unamp.trace`."""
    computing = (name for name, op in vocabulary().items() if op.group not in _NOT_TRACED)
    kernels.install(operator for op in computing for operator in kernels.operators(op))


def _needed(operator: Operator, actions: Mapping[str, Mapping[str, Action]]) -> bool:
    return any(operator.name in table for table in actions.values())


def _actions(policy: Policy, device: str) -> dict[str, Action]:
    table = {}
    for op, rule in policy.rules.items():
        for operator in kernels.operators(op):
            action = _action(policy, rule, operator, device)
            if action is not None:
                table[operator.name] = action
    return table


def _action(policy: Policy, rule: Rule, operator: Operator, device: str) -> Action | None:
    """What is done about a rule for an operator; None where PyTorch follows it by itself."""
    native = _native_rule(operator, device)
    if rule is Rule.LOW:
        if operator.op in facts().no_kernel.get((device, policy.dtype), ()):
            return kernels.emulated_widened if policy.widen_results else kernels.emulated
        if policy.widen_results:
            return kernels.low_widened
        # Native autocast casts a norm's parameters as well; here they stay in float32.
        return None if native is Rule.LOW and vocabulary()[operator.op].group != "norm" else kernels.low
    if rule is Rule.FP32:
        return None if native is Rule.FP32 else kernels.in_float32
    if rule is Rule.BANNED:
        return None if native is Rule.BANNED else kernels.banned(policy.reason(operator.op).advice)
    if rule is Rule.WIDEST:
        return None if _promotes(operator, native) else kernels.in_widest
    return None if native is Rule.UNTOUCHED and operator.op not in facts().decomposes else kernels.untouched


def explicit_action(policy: Policy, operator: Operator, device: str) -> Action:
    """The action that carries a rule out all by itself, for where native autocast does not run."""
    rule = policy.rules[operator.op]
    if rule is Rule.FP32:
        return kernels.in_float32
    if rule is Rule.WIDEST:
        return kernels.in_widest
    return _action(policy, rule, operator, device) or (kernels.low if rule is Rule.LOW else kernels.untouched)


def _promotes(operator: Operator, native: Rule | None) -> bool:
    if native is Rule.WIDEST:
        return True
    if native is not Rule.UNTOUCHED or operator.op in facts().decomposes:
        return False
    return operator.eligible.single or operator.op in facts().promotes


def _native_rule(operator: Operator, device: str) -> Rule | None:
    """What native autocast does with an operator; None where this version of PyTorch lists it and our tables do not."""
    if not torch._C._dispatch_has_kernel_for_dispatch_key(operator.name, _KEY_NAMES[device]):
        return Rule.UNTOUCHED
    lists = preset(_NATIVE_LISTS[device])
    if operator.op in lists.allow:
        return Rule.LOW
    if operator.op in lists.deny:
        return Rule.FP32
    if operator.op in lists.promote:
        return Rule.WIDEST
    return Rule.BANNED if operator.op in lists.banned else None


def how(op: str, policy: Policy, device: str) -> How:
    """How a rule is carried out on a device, for `unamp.explain`."""
    found = kernels.operators(op)
    if not found:
        return How.ABSENT
    stated = policy.delegated("torch", device)
    if stated is None or not stated.active or stated is not policy:
        return How.NATIVE
    rule = policy.rules[op]
    actions = {_action(policy, rule, operator, DEVICE_TYPES[device]) for operator in found} - {None}
    if not actions:
        return How.NATIVE
    return How.EMULATED if actions & {kernels.emulated, kernels.emulated_widened} else How.INTERCEPTED
