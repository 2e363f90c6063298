"""Turn a policy into a plan: its rules for JAX's primitives, composite operations and layers."""

from __future__ import annotations

from functools import lru_cache, partial

from unamp.adapter import How
from unamp.adapter.plans import how_by_calls
from unamp.policy import Policy
from unamp.presets import preset
from unamp.vocabulary import vocabulary
from unamp_jax.composites import emulates
from unamp_jax.spellings import libraries
from unamp_jax.state import DTYPES, Plan


def plan(policy: Policy) -> Plan | None:
    """Return the plan for a policy; None where nothing is to be done.

    JAX has no AMP of its own that ``native`` could mean. Once another library is imported there is
    another plan, because programs traced before did not follow that library's functions.
    """
    if not policy.active or preset(policy.preset).delegates:
        return None
    return _made(policy, libraries())


@lru_cache(maxsize=256)
def _made(policy: Policy, known: tuple[str, ...]) -> Plan:
    return Plan(policy, policy.rules, key=known)


def how(op: str, policy: Policy, device: str) -> How:
    """Return the way in which a rule is carried out, for `unamp.explain`."""
    if "jax" not in vocabulary()[op].spellings:
        return How.ABSENT
    made = plan(policy)
    is_emulated = partial(emulates, op, DTYPES[policy.dtype], device)
    return how_by_calls(op, None if made is None else made.rules, is_emulated)
