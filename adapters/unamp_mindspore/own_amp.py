"""MindSpore's own AMP beside regions: of the two, the inner one is in force.

``auto_mixed_precision(..., "auto")`` puts a strategy in force while a network runs. A region inside
switches that strategy off while it is open, and a strategy inside a region suspends the region. A
strategy is in force in the whole process, so a region switches it off for other threads, too.
"""

from __future__ import annotations

from mindspore._c_expression import amp as strategies
from mindspore.train import amp

from unamp._function_types import Function
from unamp.adapter.replacing import CodePatch, as_replacement
from unamp_mindspore.state import DTYPES, thread

#: MindSpore's strategy in force; None where there is none.
_in_force = strategies.get_curr_amp_strategy

_ATTRIBUTE = "_unamp_plan"


def switch_off() -> bool:
    """Switch MindSpore's strategy off, and return whether one was in force.

    If it was, the caller must call `switch_on` later.
    """
    if _in_force() is None:
        return False
    strategies.push_amp_strategy(strategies.AmpLevel.AmpO0, DTYPES["float16"], [], [])
    return True


#: Put the strategy in force again that `switch_off` switched off.
switch_on = strategies.pop_amp_strategy


@as_replacement
def _begins(original: Function, self: amp.AmpDecorator) -> None:
    """Wrap `AmpDecorator.__enter__`, so that it suspends this thread's region."""
    original(self)
    vars(self)[_ATTRIBUTE] = thread.plan
    thread.plan = None


@as_replacement
def _ends(original: Function, self: amp.AmpDecorator, *error: object) -> None:
    original(self, *error)
    if _ATTRIBUTE in vars(self):  # else it began before any region was open
        thread.plan = vars(self).pop(_ATTRIBUTE)


#: The patches of the methods with which MindSpore's own AMP begins and ends.
OWN_HOOKS = (
    CodePatch(amp.AmpDecorator.__enter__, _begins),
    CodePatch(amp.AmpDecorator.__exit__, _ends),
)
