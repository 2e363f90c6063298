"""Plans for PaddlePaddle: a policy's rules, and the patches and actions that carry them out.

On a GPU Paddle's own `auto_cast` carries out the preset ``native``, and under the preset ``paddle``
the rules of forward functions. All else is carried out call by call, by the functions that replace
Paddle's while a region is open (`patches`). A plan says which functions those are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache, cached_property, lru_cache

from unamp._function_types import Keywords
from unamp.adapter import How
from unamp.adapter.patching import Patch
from unamp.adapter.plans import BasePlan, all_widest, how_by_calls, is_listed, with_synonyms
from unamp.adapter.replacing import PatchGroup
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_paddle import distributions, listing
from unamp_paddle.calls import perform
from unamp_paddle.compiling import not_simulated
from unamp_paddle.facts import facts
from unamp_paddle.operators import Operator
from unamp_paddle.state import CPU_ONLY, DTYPES

_KEEPS = (Rule.UNTOUCHED, Rule.WIDEST)
_CHANGES = (Rule.LOW, Rule.BANNED)  # float32 inputs, too


@cache
def _deciding() -> tuple[tuple[str, frozenset[str] | None], ...]:
    """Return, for each operator, the operations whose rules decide whether float32 inputs change.

    None stands for an operator that must always be looked at.
    """
    found = []
    for operator in listing.operators():
        if operator.sparse:
            continue
        # A call that is left alone runs its parts under their own rules, so their rules count, too.
        # The parts of some composites are not known (None).
        parts = facts().made_of.get(operator.op or "") if operator.composite else ()
        if operator.which is not None or operator.layer or parts is None:
            deciding = None
        else:
            # An empty set: without a name in the vocabulary, float32 inputs are never cast.
            deciding = frozenset({*parts, *filter(None, (operator.op,))})
        found.append((operator.name, deciding))
    return tuple(found)


@cache
def _sparse() -> tuple[Operator, ...]:
    return tuple(operator for operator in listing.operators() if operator.sparse)


class Plan(BasePlan):
    """A policy made ready for PaddlePaddle.

    Attributes:
        changes_float32: Paddle's names of the operations whose calls must be looked at even if all
            inputs are float32.
        delegated: whether Paddle's own AMP is put in force instead (preset ``native`` on a GPU).
        natively: whether Paddle's own AMP, in force beside the plan, carries out the rules of
            forward functions on a GPU. A composite (`conv2d` with its bias) follows the plan.
        layer_rule: the rule for all operations inside a layer that is one operation, except those
            that a level leaves alone; None elsewhere.
    """

    def __init__(
        self,
        policy: Policy,
        rules: Mapping[str, Rule],
        *,
        reporting: bool = False,
        layer_rule: Rule | None = None,
        delegated: bool = False,
        natively: bool = False,
    ) -> None:
        super().__init__(
            policy, with_synonyms(policy, rules, facts().synonyms), reporting=reporting
        )
        self.low = DTYPES[policy.dtype]
        self.delegated = delegated
        self.natively = natively
        self.layer_rule = layer_rule

    def rule(self, op: str) -> Rule:
        """Return the rule in force for an operation."""
        rule = self.rules[op]
        if self.layer_rule is not None and rule is not Rule.UNTOUCHED:
            return self.layer_rule
        return rule

    def carry_out(self, operator: Operator, args: Sequence[object], kwargs: Keywords) -> object:
        """Call an operation under its rule."""
        return perform(self, operator, args, kwargs)

    @cached_property
    def changes_float32(self) -> frozenset[str]:
        """See the class."""
        changing = {op for op in self.rules if self.rule(op) in _CHANGES}
        found = {
            name
            for name, ops in _deciding()
            if self.reporting or ops is None or not ops.isdisjoint(changing)
        }
        return frozenset(
            found.union(operator.name for operator in _sparse() if operator.op in self.policy.allow)
        )

    def _needs(self, operator: Operator) -> bool:
        # A composite is patched only where its parts alone would not follow its rule.
        op = operator.op
        assert op is not None
        if op in facts().transparent or operator.sparse:
            return is_listed(self.policy, op)
        rule = self.rule(op)
        if operator.in_programs:  # low is emulated there under any rule
            return True
        if operator.direct:
            return self.reporting or rule not in _KEEPS
        if operator.view and vocabulary()[op].group != "comparison":
            return rule is not Rule.UNTOUCHED or any(
                self.rule(part) not in _KEEPS for part in facts().made_of.get(op, ())
            )
        if self.reporting or operator.which is not None:
            return True
        if rule is Rule.UNTOUCHED and op not in facts().made_of:
            return False
        if rule not in _KEEPS and "dtype" in operator.places:
            return True  # its parts do not get the dtype that a caller names, an explicit cast
        return op in facts().checks_dtypes or not self._part_follows(op, rule)

    def _part_follows(self, op: str, rule: Rule) -> bool:
        """Return whether a composite's only part does by itself what the composite's rule says.

        Several parts would each round their results, and each widen its own inputs. A part of
        another name does so only under rules that leave agreeing inputs alone, since which part
        runs may depend on the arguments.
        """
        parts = facts().made_of.get(op, ())
        return parts == (op,) or (
            len(parts) == 1 and rule in _KEEPS and self.rule(parts[0]) is rule
        )

    @cached_property
    def patches(self) -> tuple[Patch, ...]:
        """The patches that a region needs for this plan, besides those of every region."""
        return not_simulated(self._made_patches)

    def _made_patches(self) -> tuple[Patch, ...]:
        needed = (code for operator, code in listing.codes().items() if self._needs(operator))
        # Most policies leave comparisons alone, and Paddle's own then do.
        compared = self.reporting or any(
            self.rule(op) is not Rule.UNTOUCHED for op in listing.COMPARISONS
        )
        return (
            PatchGroup(needed),
            *((listing.comparisons(),) if compared else ()),
            *((distributions.computing(),) if distributions.compute_low(self) else ()),
        )

    @cached_property
    def observed(self) -> Plan:
        """The same plan, for a thread with an open trace."""
        return Plan(self.policy, self.rules, reporting=True, layer_rule=self.layer_rule)

    @cached_property
    def without_native(self) -> Plan:
        """The same plan without Paddle's own AMP beside it."""
        return Plan(self.policy, self.rules, layer_rule=self.layer_rule)

    def inside(self, rule: Rule) -> Plan:
        """Return the plan for the operations inside a composite with this rule."""
        return self._inside[rule]

    @cached_property
    def _inside(self) -> Mapping[Rule, Plan]:
        return {rule: Plan(self.policy, all_widest(), layer_rule=rule) for rule in Rule}


@lru_cache(KEPT_POLICIES)
def plan(policy: Policy, device: str | None) -> Plan | None:
    """Return the plan for a policy on a device; None where nothing is to be done.

    That is a policy that changes nothing, and the preset ``native`` on a CPU, where Paddle has no
    AMP. The device is ``"cpu"``, ``"gpu"``, or None for every device of this process.
    """
    if not policy.active:
        return None
    if preset(policy.preset).delegates:
        on_gpu = device != "cpu" and not CPU_ONLY
        stated = policy.delegated("paddle", "gpu" if on_gpu else "cpu")
        return None if stated is None else Plan(stated, stated.rules, delegated=True)
    return Plan(policy, policy.rules, natively=followed_natively(policy, device, gpu=not CPU_ONLY))


def followed_natively(policy: Policy, device: str | None, *, gpu: bool) -> bool:
    """Return whether Paddle's own AMP decides about every forward function as the policy does.

    It has the lists of the preset ``paddle``, and no level O3. It cannot take over a user's lists,
    which hold operations: Paddle's hold names of kernels.
    """
    own = policy.preset == "paddle" and policy.level in ("OD", "O1", "O2")
    return (
        gpu
        and device != "cpu"
        and own
        and not (policy.allow or policy.deny or policy.widen_results)
    )


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out on a device, for `unamp.explain`."""
    found = [operator for operator in listing.operators() if operator.op == op]
    if not found and "paddle" not in vocabulary()[op].spellings:
        return How.ABSENT
    stated = policy.delegated("paddle", device)
    if stated is None or not stated.active or stated is not policy:
        return How.NATIVE
    if followed_natively(policy, device, gpu=device == "gpu") and not any(
        operator.composite for operator in found
    ):
        return How.NATIVE
    is_view = bool(found) and all(operator.view for operator in found)
    return how_by_calls(op, stated.rules, lambda: device == "cpu" and not is_view)
