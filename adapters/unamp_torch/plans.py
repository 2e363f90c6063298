"""Turn a policy into a plan: the actions that carry it out in PyTorch.

PyTorch's own autocast carries out the rules that its lists contain, in C++ and at no further cost.
A plan holds what is left: for each kind of device, the operators whose rule differs, each with the
action that carries the rule out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache, cached_property, lru_cache

import torch

from unamp.adapter import How
from unamp.adapter.plans import ban_message
from unamp.errors import NotExpressible
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import as_of, preset, without_version
from unamp.vocabulary import vocabulary
from unamp_torch import calls, state
from unamp_torch.compiled import library
from unamp_torch.compiling import guard
from unamp_torch.devices import accelerator, device_type
from unamp_torch.facts import facts, follows_parts
from unamp_torch.kernel_registration import (
    compiled_plan,
    install,
    install_on_meta,
    let_autocast_pass,
)
from unamp_torch.listing import Action, Operator, name_operators_of_libraries, operators
from unamp_torch.state import CPU, CUDA, DTYPES, FEW, MANY, META, NATIVE_KEYS, TRACED, autocast_key

#: The preset that holds PyTorch's own lists for a device type.
_NATIVE_LISTS = preset("native").delegates["torch"]


class Plan(state.Plan):
    """A policy made ready for PyTorch, with its complete form and its compiled one."""

    @cached_property
    def complete(self) -> Plan:
        """The same plan with our kernels for every rule, also where native autocast follows it."""
        if self.is_complete or not self.autocast or self.delegated:
            return self
        actions = {
            device: {**table, **_complete_actions(policy, device)}
            for device, table in self.actions.items()
            if (policy := self.policy_on(device)) is not None
        }
        made = replace(self, actions=actions, key=TRACED, is_complete=True)
        install(_named(made.intercepted), TRACED)
        return made

    @cached_property
    def compiled(self) -> object:
        """The actions as the compiled kernels take them; None where there are none."""
        return (
            None
            if library is None or self.key is TRACED or not self.intercepted
            else compiled_plan(library, self)
        )


def plan(policy: Policy, device: str | None) -> Plan:
    """Return the plan for a policy on a kind of device, or (None) wherever tensors can be.

    The kinds are ``"cpu"``, ``"gpu"`` and ``"meta"``. The kernels that the plan needs are installed
    with it.

    Raises:
        NotExpressible: where the policy is PyTorch's own AMP, and the device has none.
    """
    return _plan(policy, device, accelerator())


@lru_cache(KEPT_POLICIES)
def _plan(policy: Policy, device: str | None, found: str | None) -> Plan:
    covered = (device_type(device),) if device else tuple(dict.fromkeys((CPU, found or CPU, META)))
    low = DTYPES[policy.dtype]
    if not policy.active:
        install((), FEW)  # for writes to parameters alone
        # A guard, because a compiled function may ask what is in force: a policy that is off is
        # another answer than none.
        return Plan(policy, low, covered, autocast=False, device=device, guard=guard("off"))
    if preset(policy.preset).delegates:
        native = tuple(each for each in covered if autocast_key(each) is not None)
        if not native or not all(map(torch.amp.is_autocast_available, native)):
            raise NotExpressible(
                f"PyTorch's own AMP, which the preset {policy.preset!r} stands for, "
                f"does nothing on {device!r}"
            )
        install((), FEW)
        for kind in native:
            if kind not in NATIVE_KEYS:
                let_autocast_pass(kind)
        return Plan(policy, low, native, autocast=True, delegated=True, device=device)
    actions = {kind: _actions(policy, kind) for kind in covered}
    others = [kind for kind in covered if kind not in (*NATIVE_KEYS, META)]
    key = FEW if policy.level == "O1" and not policy.widen_results else MANY
    if others or covered == (META,):
        key = TRACED  # its kernels see the tensors of every device
    if META in covered:
        install_on_meta(_named(actions[META]))
    for kind in others:
        let_autocast_pass(kind)
    made = Plan(policy, low, covered, autocast=True, actions=actions, device=device, key=key)
    return _installed(made, (policy, covered, _changes))


def _installed(made: Plan, told_by: object) -> Plan:
    """Install a plan's kernels, and return it; where it has any, with the guard of `told_by`."""
    install(_named(made.intercepted), made.key)
    return replace(made, guard=guard(told_by)) if made.intercepted else made


_changes = 0  # how often the rules of operators have changed


def forget() -> None:
    """Forget all plans: the rules of a library's operators have changed."""
    global _changes
    _changes += 1
    for kept in (
        _plan,
        _actions,
        _plain_actions,
        _complete_actions,
        _is_listed,
        _by_name,
        operators,
    ):
        kept.cache_clear()


@lru_cache(KEPT_POLICIES)
def nested(outer: state.Plan, inner: Plan) -> Plan:
    """Return the inner plan, with the outer plan's actions on devices that it does not cover."""
    left = tuple(device for device in outer.devices if device not in inner.devices)
    if not left or not outer.autocast:
        return inner
    actions = {
        **{device: table for device, table in outer.actions.items() if device in left},
        **inner.actions,
    }
    if left == (META,) and inner.autocast:
        # The kernels for meta tensors are on a key of their own, and the outer plan has them.
        return replace(inner, actions=actions, beside=outer)
    key = TRACED if META in left or TRACED in (outer.key, inner.key) else MANY
    made = replace(inner, actions=actions, key=key, beside=outer, guard=())
    return _installed(made, (outer.policy, outer.devices, inner.policy, inner.devices))


def install_all() -> None:
    """Install a kernel for every operator that computes, of libraries too, for `unamp.trace`."""
    name_operators_of_libraries()
    _install_all(vocabulary().generation)


@lru_cache(1)
def _install_all(generation: int) -> None:
    install((operator for operator in _all_operators() if operator.computes), TRACED)


@cache
def install_traced(plan: state.Plan) -> None:
    """Install kernels for all other operators with a rule or action in a plan, for tracing."""
    acted = set().union(*plan.actions.values())
    install(
        (o for o in _all_operators() if o.name in acted or plan.rule(o.op) is not Rule.UNTOUCHED),
        TRACED,
    )


def _named(names: Iterable[str]) -> Iterable[Operator]:
    known = _by_name(vocabulary().generation)
    return (known[name] for name in names if name in known)


@lru_cache(1)
def _by_name(generation: int) -> Mapping[str, Operator]:
    return {operator.name: operator for operator in _all_operators()}


def _all_operators() -> Iterable[Operator]:
    return (operator for op in vocabulary() for operator in operators(op))


@lru_cache(KEPT_POLICIES)
def _actions(policy: Policy, device: str) -> Mapping[str, Action]:
    if follows_native_lists(policy, device):
        return _actions_beside_native(policy, device)
    if device == META and follows_native_lists(policy, CPU):
        return _as_native_on_cpu(policy)
    table = _own_actions(policy, device)
    # The rules for an operation's parts do not reach into it: where one would, a kernel of ours
    # takes the operation over.
    rules = policy.rules
    for op, parts in facts().made_of.items():
        agreed = agree(rules, op, parts) and not _reached_natively(rules[op], parts, device)
        if agreed or _follows_by_its_parts(policy, op, device):
            continue
        for operator in operators(op):
            if operator.name not in table and _native_rule(operator, device) is Rule.UNTOUCHED:
                table[operator.name] = action_for(policy, operator, device)
    for operator, parts in _bypassing():
        if operator.name not in table and not agree(rules, operator.op, parts):
            table[operator.name] = action_for(policy, operator, device)
    return table


def _own_actions(policy: Policy, device: str) -> dict[str, Action]:
    """Return the actions that carry out operations' own rules, whatever their parts."""
    rules, plain = policy.rules, policy.replace(allow=(), deny=())
    changed, table = tuple(rules), dict[str, Action]()
    if plain != policy and not follows_native_lists(plain, device):
        # The user's lists change a few rules, and those of operations that only choose others
        # (`follows_parts`); the rest is taken from the plan without lists, which is kept.
        before, chooses = plain.rules, facts().chooses
        changed = tuple(op for op, rule in rules.items() if rule is not before[op] or op in chooses)
        table.update(_plain_actions(plain, device))
    for op in changed:
        by_parts = follows_parts(policy, op)
        for operator in operators(op):
            table.pop(operator.name, None)
            if (
                not by_parts
                and (action := _action(policy, rules[op], operator, device)) is not None
            ):
                table[operator.name] = action
    return table


@lru_cache(64)
def _plain_actions(policy: Policy, device: str) -> Mapping[str, Action]:
    return _own_actions(policy, device)


def agree(rules: Mapping[str, Rule], op: str, parts: Iterable[str]) -> bool:
    """Return whether the rules for an operation's parts agree with its own."""
    agreeing = (rules[op], Rule.WIDEST, Rule.UNTOUCHED)
    return all(rules[part] in agreeing for part in parts)


def _reached_natively(rule: Rule, parts: Iterable[str], device: str) -> bool:
    """Return whether native autocast may give an operation's parts another rule than its own.

    Parts that PyTorch computes below autograd (affine_grid's product, mvlgamma's sum) meet native
    autocast, and no kernel of ours.
    """
    if device not in NATIVE_KEYS:
        return False
    lists = preset(_NATIVE_LISTS[device])
    reaching = ((lists.allow, Rule.LOW), (lists.deny, Rule.FP32))
    return any(rule is not listed and not names.isdisjoint(parts) for names, listed in reaching)


@cache
def _bypassing() -> tuple[tuple[Operator, tuple[str, ...]], ...]:
    """Return the operators that are called past their operation, with their parts."""
    return tuple(
        (o, parts)
        for o in _all_operators()
        if (parts := facts().bypassing.get(o.overload._schema.name[6:])) is not None
    )


def follows_native_lists(policy: Policy, device: str) -> bool:
    """Return whether a policy is PyTorch's own lists for a device, and nothing else.

    Then an operation that PyTorch computes with others does what torch's own autocast makes of it:
    rules reach its parts.
    """
    own = without_version(policy.preset) == _NATIVE_LISTS.get(device) and policy.level == "O1"
    return own and not (policy.allow or policy.deny or policy.widen_results)


def _actions_beside_native(policy: Policy, device: str) -> Mapping[str, Action]:
    """Return the actions left beside native autocast where a policy is its own lists.

    No answer of PyTorch's changes: actions widen mixed inputs that single operators refuse, and
    give advice on bans. Where the lists are another version's than this PyTorch's, the actions
    follow those lists.
    """
    table = {}
    native_rules = policy.replace(preset=as_of(_NATIVE_LISTS[device], torch.__version__)).rules
    for op, rule in policy.rules.items():
        moved = native_rules[op] is not rule or _low_in_another_dtype(policy, op, device)
        if not moved and rule not in (Rule.WIDEST, Rule.BANNED):
            continue
        answered = op in facts().answering or op in facts().made_of or follows_parts(policy, op)
        for operator in operators(op):
            native = _listed_rule(operator, device)
            refused = native is Rule.WIDEST or (
                native is Rule.UNTOUCHED and not operator.composite and not answered
            )
            if not (moved or refused or rule is Rule.BANNED):
                continue
            if (action := _action(policy, rule, operator, device)) is not None:
                table[operator.name] = action
    return table


def _as_native_on_cpu(policy: Policy) -> Mapping[str, Action]:
    """Return the actions by which meta tensors get the dtypes that tensors on the CPU get.

    The policy is native autocast's own lists.
    """
    table = dict(_actions(policy, CPU))
    for op, rule in policy.rules.items():
        if rule not in (Rule.LOW, Rule.FP32) or vocabulary()[op].group == "recurrent":
            continue
        for operator in operators(op):
            if _has_kernel(operator, NATIVE_KEYS[CPU].name):
                table.setdefault(operator.name, action_for(policy, operator, META))
    return table


def is_left_to_pytorch(policy: Policy, operator: Operator, device: str) -> bool:
    """Return whether a policy is PyTorch's own lists, and leaves an operator alone.

    The lists do not name the operator, and it has no action.
    """
    unlisted = follows_native_lists(policy, device) and not _is_listed(operator, device)
    return unlisted and operator.name not in _actions(policy, device)


@lru_cache(KEPT_POLICIES)
def _complete_actions(policy: Policy, device: str) -> Mapping[str, Action]:
    table = {}
    for op, rule in policy.rules.items():
        if rule is Rule.UNTOUCHED or follows_parts(policy, op):
            continue
        # Under vmap the backward pass of a norm takes no low input with float32 parameters.
        can_be_low = rule in (Rule.LOW, Rule.WIDEST, Rule.NARROWEST)
        norm = can_be_low and vocabulary()[op].group == "norm"
        for operator in operators(op):
            if is_left_to_pytorch(policy, operator, device) and not norm:
                continue
            action = action_for(policy, operator, device)
            table[operator.name] = calls.WithoutLowKernel(action) if norm else action
    return table


def _follows_by_its_parts(policy: Policy, op: str, device: str) -> bool:
    """Return whether PyTorch follows a composed operation's rule through the rules for its parts.

    So its lists for CUDA cover operations that they do not name, like softmin, as long as nobody
    changes the lists. (On the CPU such an operation refuses mixed inputs, or answers in the dtype
    of its state.) Under the default preset an operation is one whole: `pairwise_distance` subtracts
    in float32, too.
    """
    own = (
        device == CUDA
        and follows_native_lists(policy, device)
        and not _low_in_another_dtype(policy, op, device)
    )
    return own and op in preset(policy.preset).implied and op not in _STATING_DTYPES


def _low_in_another_dtype(policy: Policy, op: str, device: str) -> bool:
    """Return whether native autocast runs an operation in float16, not the policy's low dtype."""
    return device == CUDA and policy.dtype != "float16" and op in facts().float16_on_cuda


#: The operations that call a part with an explicit dtype, their input's: native autocast on CUDA
#: takes that for the caller's wish, and `log_softmax` stays low.
_STATING_DTYPES = frozenset({"cross_entropy"})


#: The actions that carry rules out without native autocast; a ban's has a message of its own.
_ACTIONS: Mapping[Rule, Action] = {
    Rule.LOW: calls.low,
    Rule.FP32: calls.in_float32,
    Rule.WIDEST: calls.in_widest,
    Rule.NARROWEST: calls.in_narrowest,
    Rule.UNTOUCHED: calls.untouched,
}


def _action(policy: Policy, rule: Rule, operator: Operator, device: str) -> Action | None:
    """Return the action that carries out an operator's rule; None where PyTorch follows it."""
    if rule is Rule.BANNED:
        return calls.Banned(ban_message(policy, operator.op))
    if rule is Rule.LOW and policy.widen_results:
        return calls.low_widened
    native = (
        rule
        if _follows_by_its_parts(policy, operator.op, device)
        else _native_rule(operator, device)
    )
    missing = [
        dtype for kind, dtype in operator.no_kernel if kind == (CPU if device == META else device)
    ]
    if rule is Rule.LOW:
        # Native autocast casts a norm's parameters as well, which stay in float32 here,
        # and does not emulate.
        followed = (
            native is Rule.LOW
            and vocabulary()[operator.op].group != "norm"
            and DTYPES[policy.dtype] not in missing
        )
    elif rule is Rule.WIDEST:
        # Native autocast's own promotion raises for the low dtype that is not the region's.
        alone = operator.eligible.single and not (
            policy.dtype == "float32" and operator.eligible.parameters
        )
        followed = (
            native is Rule.UNTOUCHED and (alone or operator.op in facts().promoting) and not missing
        )
    elif rule is Rule.NARROWEST:
        followed = native is Rule.UNTOUCHED and operator.eligible.single and not missing
    else:
        followed = native is rule
    return None if followed else _ACTIONS[rule]


def action_for(policy: Policy, operator: Operator, device: str) -> Action:
    """Return the action for an operator's rule where native autocast does not run."""
    rule = policy.rules[operator.op]
    return _action(policy, rule, operator, device) or _ACTIONS[rule]


def _native_rule(operator: Operator, device: str) -> Rule | None:
    """Return the rule that native autocast follows.

    None where this version of PyTorch lists the operator and our tables do not.
    """
    if vocabulary()[operator.op].group == "recurrent":
        # Only oneDNN's and cuDNN's paths, taken for some calls, are listed; the latter is float16
        # whatever the low dtype.
        return None
    if device not in NATIVE_KEYS:
        # Whatever PyTorch's lists for the device are, a kernel of ours carries out every rule, and
        # emulates where it must.
        return (
            None
            if (key := _autocast_key(device)) is not None and _has_kernel(operator, key)
            else Rule.UNTOUCHED
        )
    return _listed_rule(operator, device)


def _listed_rule(operator: Operator, device: str) -> Rule | None:
    """Return the rule of native autocast's lists for a device.

    None where autocast has a kernel for the operator, and our tables do not list it.
    """
    if not _is_listed(operator, device):
        return Rule.UNTOUCHED
    lists = preset(_NATIVE_LISTS[device])
    if operator.op in lists.allow:
        return Rule.LOW
    if operator.op in lists.deny:
        return Rule.FP32
    if operator.op in lists.promote:
        return Rule.WIDEST
    return Rule.BANNED if operator.op in lists.banned else None


@cache
def _is_listed(operator: Operator, device: str) -> bool:
    """Return whether native autocast has a kernel for an operator.

    A kernel for another overload or alias, with which the operator is computed, counts too.
    """
    if (key := _autocast_key(device)) is None:
        return False
    others = operators(operator.op, inner=True) if operator.composite else ()
    return any(_has_kernel(each, key) for each in (operator, *others))


@cache
def _autocast_key(device: str) -> str | None:
    """Return the name of `autocast_key`, for which it takes long to ask a key."""
    key = autocast_key(device)
    return None if key is None else key.name


def _has_kernel(operator: Operator, key: str) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(operator.name, key)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out on a device, for `unamp.explain`."""
    found = operators(op)
    if not found:
        return How.NATIVE if "torch" in vocabulary()[op].spellings else How.ABSENT
    if not policy.active or policy.delegated("torch", device_type(device)) is not policy:
        return How.NATIVE
    table = _actions(policy, device_type(device))
    called = [
        operator
        for operator in found
        if operator.overload._schema.name.removeprefix("aten::") not in facts().bypassing
    ]
    if not any(operator.name in table for operator in called):
        return How.NATIVE
    emulated = policy.rules[op] is Rule.LOW and op in facts().lacking.get(
        (device_type(device), policy.dtype), ()
    )
    return How.EMULATED if emulated else How.INTERCEPTED
