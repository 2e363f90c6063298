"""Plans for TensorFlow: a policy's rules for operation types and composite operations.

TensorFlow has no region of its own that casts, so patches carry out everything while a region is
open: `calls` for operation types, `composites` for composite operations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import cache, cached_property, lru_cache

from unamp.adapter import How
from unamp.adapter.keras_models import facts as keras_facts
from unamp.adapter.patching import Patch
from unamp.adapter.plans import BasePlan, all_widest, how_by_calls, is_listed, with_synonyms
from unamp.adapter.replacing import PatchGroup
from unamp.policy import KEPT_POLICIES, Policy, Rule
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_tensorflow.calls import OpTypeAction
from unamp_tensorflow.composites import Composite
from unamp_tensorflow.facts import facts
from unamp_tensorflow.finding import functions, keras
from unamp_tensorflow.listing import has_kernel, op_type, op_types
from unamp_tensorflow.spellings import keras_in_use
from unamp_tensorflow.state import DTYPES, FLOAT32, NAMES


class TensorFlowPlan(BasePlan):
    """A policy made ready for TensorFlow; see `unamp_tensorflow.state.Plan`.

    Attributes:
        low: the number of the policy's low dtype.
        within_composite: whether it is for the parts of a composite operation.
        key: the part of a graph's key that differs between plans.
    """

    def __init__(
        self,
        policy: Policy,
        rules: Mapping[str, Rule],
        *,
        key: Hashable = None,
        within_composite: bool = False,
        reporting: bool = False,
    ) -> None:
        super().__init__(
            policy, with_synonyms(policy, rules, facts().synonyms), reporting=reporting
        )
        self.low = DTYPES[policy.dtype]
        self.within_composite = within_composite
        self.key = ("unamp", policy, key)
        self._for_coordinates: dict[str, TensorFlowPlan] = {}
        self._for_layers: dict[tuple[str, int], TensorFlowPlan] = {}

    def rule(self, op: str | None) -> Rule:
        """Return the rule in force; WIDEST for None, an operation type without a name."""
        return Rule.WIDEST if op is None else self.rules[op]

    def follows_parts(self, op: str) -> bool:
        """Return whether a composite operation's parts follow their own rules, and it has none."""
        return op in facts().transparent and not is_listed(self.policy, op)

    def for_parts_with_rules(self, op: str) -> TensorFlowPlan:
        """See `unamp_tensorflow.state.Plan`.

        In `interpolate`, rules hold for the operations that resize. The others compute coordinates,
        which must not be low.
        """
        if op not in facts().coordinates or not self.policy.active:
            return self
        if op not in self._for_coordinates:
            group = vocabulary()[op].group
            rules = {
                name: self.rules[name] if vocabulary()[name].group == group else r
                for name, r in all_widest().items()
            }
            policy = Policy(
                self.policy.level, self.policy.dtype, widen_results=self.policy.widen_results
            )
            self._for_coordinates[op] = TensorFlowPlan(
                policy, rules, key=(self.key, op), reporting=self.reporting
            )
        return self._for_coordinates[op]

    def ban(self, op: str | None) -> str:
        """Return the text of the error for a banned operation."""
        assert op is not None  # an operation that the vocabulary lacks is never banned
        return super().ban(op)

    @cached_property
    def actions(self) -> Mapping[str, OpTypeAction | None]:
        """The actions for operation types, by name; None for one that is left alone."""
        return _Actions(self._action)

    def _action(self, name: str) -> OpTypeAction | None:
        found = op_type(name)
        if found is None or (found.op is not None and vocabulary()[found.op].group == "cast"):
            return None
        rule = self.rule(found.op)
        if not self.policy.active:
            return OpTypeAction(found, rule, 0)
        ban = self.ban(found.op) if rule is Rule.BANNED else ""
        made = OpTypeAction(found, rule, self.low, widen=self.policy.widen_results, ban=ban)
        return made if self.reporting or not made.needless else None

    @property
    def patches(self) -> tuple[PatchGroup, ...]:
        """The patches of the composite operations whose parts alone would not follow the rule."""
        return (self._of_functions, self._of_keras) if keras_in_use() else (self._of_functions,)

    @cached_property
    def _of_functions(self) -> PatchGroup:
        return _group(tuple(composite.patch for composite in functions() if self._needs(composite)))

    @cached_property
    def _of_keras(self) -> PatchGroup:
        return _group(tuple(composite.patch for composite in keras() if self._needs(composite)))

    def _needs(self, composite: Composite) -> bool:
        if composite.layer:
            return True
        if self.follows_parts(composite.op):
            return composite.op in facts().coordinates
        made_of = facts().made_of.get(composite.name)
        if self.reporting or made_of is None:
            return True
        return any(self.rules[part] is not self.rules[composite.op] for part in made_of)

    @cached_property
    def observed(self) -> TensorFlowPlan:
        """The same plan, with every operation reported."""
        return TensorFlowPlan(
            self.policy, self.rules, within_composite=self.within_composite, reporting=True
        )

    @cached_property
    def for_parts(self) -> TensorFlowPlan | None:
        """See `unamp_tensorflow.state.Plan`.

        The composite's inputs are cast already, so parts only widen inputs that differ.
        """
        if not self.policy.active:
            return None
        if self.within_composite:
            return self
        return _for_parts(Policy(self.policy.level, self.policy.dtype))

    def for_parts_of_layer(self, op: str, target: int) -> TensorFlowPlan:
        """Return the plan for the parts of a layer that computes in a dtype.

        The parts cast, since a layer's parameters are not among the inputs that were cast.
        """
        if (op, target) not in self._for_layers:
            low = NAMES[target] if target != FLOAT32 else self.policy.dtype
            policy = Policy(self.policy.level, low)
            rule = Rule.FP32 if target == FLOAT32 else Rule.LOW
            parts = keras_facts().parts.get(op)
            if parts is None:
                rules = {
                    name: was if _unchanged(name) else rule for name, was in all_widest().items()
                }
            else:  # other operations are the user's activation, which follows its own rule
                rules = {name: rule if name in parts else was for name, was in self.rules.items()}
            self._for_layers[op, target] = TensorFlowPlan(policy, rules, key=(self.key, op, target))
        return self._for_layers[op, target]


@cache
def _for_parts(policy: Policy) -> TensorFlowPlan:
    return TensorFlowPlan(policy, all_widest(), key="function", within_composite=True)


@lru_cache(KEPT_POLICIES)
def _group(patches: tuple[Patch, ...]) -> PatchGroup:
    """Return patches as one group, which policies that need the same patches share."""
    return PatchGroup(patches)


class _Actions(dict[str, OpTypeAction | None]):
    """The actions of a plan, each made when its operation type is first called.

    There are a thousand operation types, and asking TensorFlow for the kernels of one may take a
    millisecond.
    """

    def __init__(self, make: Callable[[str], OpTypeAction | None]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, name: str) -> OpTypeAction | None:
        made = self[name] = self._make(name)
        return made


@cache
def _unchanged(op: str) -> bool:
    """Return whether an operation is left alone among the parts of a layer.

    An operation that moves data is not: it may move the layer's parameters, which must be cast. But
    a list of tensors states the dtype of its items.
    """
    return (
        vocabulary()[op].group in ("creation", "random", "cast", "comparison")
        or op == "tensor_list"
    )


@lru_cache(KEPT_POLICIES)
def plan(policy: Policy) -> TensorFlowPlan | None:
    """Return the plan for a policy; None where nothing is to be done.

    That is a policy that changes nothing, and the preset ``native``: grappler, TensorFlow's AMP,
    works for the whole process, and not for a region.
    """
    if not policy.active or preset(policy.preset).delegates:
        return None
    return TensorFlowPlan(policy, policy.rules)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out, for `unamp.explain`."""
    if "tensorflow" not in vocabulary()[op].spellings:
        return How.ABSENT
    made = plan(policy)
    mine = [each for each in op_types().values() if each.op == op]
    if (
        made is not None
        and made.rules[op].leaves_agreeing
        and mine
        and not any(e.several for e in mine if "Grad" not in e.name)
    ):
        return How.NATIVE  # one input alone cannot differ from another
    rules = None if made is None else made.rules
    return how_by_calls(
        op,
        rules,
        lambda: bool(mine) and not any(has_kernel(e.name, DTYPES[policy.dtype]) for e in mine),
    )
