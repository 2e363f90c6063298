"""Every migrated region has the same policy as before.

The policy is read from the code where the region is made; no script runs.
"""

from __future__ import annotations

from typing import Any

import pytest
from snippets import Snippet, every_snippet

import unamp
from unamp.migrate import Target, migrate_source

PADDLE = [
    "paddle.amp.auto_cast()",
    "paddle.amp.auto_cast(enable=False)",
    "paddle.amp.auto_cast(custom_white_list={'elementwise_add'}, custom_black_list=['conv2d'])",
    "paddle.amp.auto_cast(True, None, None, 'o2', 'bfloat16')",
    "paddle.amp.auto_cast(level='OD', use_promote=False)",
    "paddle.amp.auto_cast(level='O0')",
    "paddle.amp.amp_guard(level='O2')",
    "paddle.autocast('gpu', 'bfloat16')",
    "paddle.amp.autocast('gpu', enabled=False)",
    "paddle.amp.auto_cast(enable=False, dtype='float32')",
]
TORCH = [
    "torch.autocast('cpu')",
    "torch.autocast('cpu', torch.float16)",
    "torch.autocast('cpu', cache_enabled=False)",
    "torch.autocast(device_type='cpu', dtype='bfloat16', enabled=False)",
    "torch.cpu.amp.autocast()",
    "torch.cpu.amp.autocast(True, 'float16', False)",
]


class _Torch:
    float16, bfloat16 = "float16", "bfloat16"


def made(call: str, target: Target) -> Any:
    done = migrate_source(f"import paddle, torch\nregion = {call}\n", target)
    lines = [line for line in done.text.splitlines() if line != "import paddle, torch"]
    names: dict[str, Any] = {"torch": _Torch}
    exec("\n".join(lines), names)
    with names["region"]:
        return unamp.current_policy()


@pytest.mark.parametrize(
    "code",
    [
        "from apex import amp\namp.initialize(m, o, opt_level='O9')\n",
        "from apex import amp\namp.initialize(m, o, opt_level=['O1'])\n",
        "from mindspore import Model\nModel(net, amp_level=5)\n",
        "from mindspore.amp import build_train_network\nbuild_train_network(n, o, level=[1])\n",
        "import paddle\npaddle.static.amp.decorate(o, level=None)\n",
    ],
)
def test_what_is_no_policy_is_told_of_the_call(code: str) -> None:
    done = migrate_source(code)
    assert done.findings
    assert [region.unknown["policy"].partition(":")[0] for region in done.regions] == ["not told"]


@pytest.mark.parametrize("call", PADDLE + TORCH)
def test_both_targets_open_a_region_of_the_same_policy(call: str) -> None:
    policies = {made(call, target) for target in Target}
    assert len(policies) == 1
    (told,) = migrate_source(f"import paddle, torch\nregion = {call}\n").regions
    assert {unamp.Policy.from_data(told.policy)} == policies
    assert told.unknown == {}


@pytest.mark.parametrize("target", Target)
def test_what_is_told_of_a_file_is_told_of_it_migrated(target: Target) -> None:
    count = 0
    for snippet in every_snippet():
        before, after = (
            migrate_source(text, target) for text in (snippet.before, _after(snippet, target))
        )
        count += len(before.regions)
        if target is Target.DIALECTS and "dtype" in snippet.name:
            # a dialect's region can take over a dtype that the migrated code alone does not tell
            continue
        said = [(_decides(region.policy), region.unknown) for region in after.regions]
        assert [(_decides(region.policy), region.unknown) for region in before.regions] == said, (
            snippet.name
        )
    assert count > 150


def _decides(policy: dict[str, Any]) -> dict[str, Any]:
    """Return a policy without its promotion, except at O2: only there promotion decides."""
    return policy if policy["level"] == "O2" else {**policy, "promote": False}


def _after(snippet: Snippet, target: Target) -> str:
    return snippet.texts["u" if target is Target.UNAMP else "d"]
