"""The policy in force for a framework and a device is found, else a library's default."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from elsewhere import ended

import unamp
from unamp import Policy, autocast, current_policy, default_region, policy_region

MINE, THEIRS = Policy("O1", "bfloat16"), Policy("O2", "float16")
NATIVE = Policy("O1", "bfloat16", preset="native")


def test_a_region_for_another_framework_does_not_count(make_adapter: Any) -> None:
    make_adapter("fake")
    make_adapter("other")
    with policy_region(THEIRS, framework="fake"):
        assert current_policy() == THEIRS
        assert current_policy(framework="fake") == THEIRS
        assert current_policy(framework="other") is None
        with policy_region(MINE, framework="other"):
            assert current_policy(framework="fake") == THEIRS
            assert current_policy(framework="other") == MINE
    assert current_policy(framework="fake") is None


def test_a_region_for_another_device_does_not_count(make_adapter: Any) -> None:
    make_adapter(has_gpu=True)
    with autocast("gpu", "float16"):
        assert current_policy(device="gpu") is not None
        assert current_policy(device="cuda") is not None
        assert current_policy(device="cpu") is None
        assert current_policy("fake", "cpu") is None


def test_the_frameworks_own_amp_counts_where_no_region_does(fake: Any) -> None:
    fake.native["cpu"] = NATIVE
    assert current_policy() is None
    assert current_policy(framework="fake") == NATIVE
    assert current_policy(framework="fake", device="gpu") is None
    with policy_region(THEIRS):
        assert current_policy(framework="fake") == THEIRS


def test_what_nobody_has_is_named(fake: Any) -> None:
    with pytest.raises(ValueError, match="unknown framework 'caffe'"):
        current_policy(framework="caffe")
    with pytest.raises(
        TypeError,
        match=r"must be the import name of one framework, or None for all; not \['fake'\]",
    ):
        current_policy(framework=["fake"])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown device_type 'tpu'"):
        current_policy(device="tpu")


def test_a_default_is_opened_where_nothing_is_in_force(fake: Any, tensor: Any) -> None:
    with default_region(MINE, like=tensor("float32")):
        assert fake.in_force == [MINE]
        assert current_policy(framework="fake", device="cpu") == MINE
        assert fake.prepared == [(MINE, "cpu")]
    assert fake.in_force == []


@pytest.mark.parametrize("theirs", [THEIRS, THEIRS.replace(enabled=False), Policy("O0")])
def test_what_is_in_force_stays(fake: Any, tensor: Any, theirs: Policy) -> None:
    with policy_region(theirs), default_region(MINE, like=[tensor("float32")]):
        assert fake.in_force == [theirs]


def test_the_frameworks_own_amp_stays(fake: Any, tensor: Any) -> None:
    fake.native["cpu"] = NATIVE
    with default_region(MINE, like={"x": tensor("float32")}):
        assert fake.in_force == []


def test_limited_regions_are_not_widened(make_adapter: Any, tensor: Any) -> None:
    make_adapter("other").tensor = int  # integers are its tensors
    fake = make_adapter("fake")
    with policy_region(THEIRS, framework="other"):
        with default_region(MINE, like=tensor("float32")):
            assert fake.in_force == [MINE]
            assert current_policy(framework="other") == THEIRS
        with default_region(MINE, like=3):
            assert current_policy(framework="other") == THEIRS
        assert fake.in_force == []


def test_tensors_on_two_devices(make_adapter: Any, tensor: Any) -> None:
    fake = make_adapter(has_gpu=True)
    here, there = tensor("float32"), tensor("float32")
    fake.places[id(there)] = "gpu"
    with default_region(MINE, like=(here, there)):
        assert fake.prepared[-1] == (MINE, None)
    with autocast("gpu", "float16") as theirs, default_region(MINE, like=(here, there)):
        assert fake.in_force == [theirs.policy]
    with autocast("gpu", "float16") as theirs, default_region(MINE, like=here):
        assert fake.in_force == [theirs.policy, MINE]


def test_other_threads_are_not_asked(fake: Any, tensor: Any) -> None:
    seen: list[Any] = []

    def work() -> None:
        with default_region(MINE, like=tensor("float32")):
            seen.append(current_policy(framework="fake"))

    with policy_region(THEIRS):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert seen == [MINE]


def test_bad_arguments_are_named(make_adapter: Any, tensor: Any) -> None:
    make_adapter("other").tensor = int
    make_adapter("fake")
    with pytest.raises(TypeError, match="policy must be an unamp.Policy, not str"):
        default_region("O1", like=tensor("float32"))  # type: ignore[arg-type]
    with pytest.raises(
        TypeError, match="like must be a tensor of an imported framework, .* got str"
    ):
        default_region(MINE, like="x")
    with pytest.raises(TypeError, match="got list"):
        default_region(MINE, like=[])
    with pytest.raises(ValueError, match="several frameworks: fake, other"):
        default_region(MINE, like=[tensor("float32"), 3])
    assert current_policy() is None


# ---- asking before


def test_check_says_how(fake: Any) -> None:
    checked = unamp.check(Policy("O1", "float16"))
    (answer,) = checked.answers
    assert checked.ok
    assert (answer.framework, answer.version, answer.device, answer.support.value) == (
        "fake",
        "1.0",
        "cpu",
        "emulated",
    )
    assert "matmul" in answer.operations(unamp.adapter.How.INTERCEPTED)
    assert str(checked).startswith("fake 1.0, cpu: emulated; operations: ")
    checked.require()
    assert fake.in_force == []


def test_check_says_why_not(fake: Any) -> None:
    fake.fails_on_prepare = unamp.NotExpressible("no such kernels")
    checked = unamp.check(MINE, framework="fake")
    assert [answer.refused for answer in checked.refused] == ["no such kernels"]
    with pytest.raises(unamp.NotExpressible, match="fake 1.0, cpu: refused: no such kernels"):
        checked.require()


def test_check_asks_about_compiled_functions_when_it_is_told_to(fake: Any) -> None:
    fake.fails_on_compile = unamp.NotExpressible("graphs cannot")
    assert unamp.check(MINE).ok
    assert [answer.refused for answer in unamp.check(MINE, compiled=True).refused] == [
        "graphs cannot"
    ]


def test_check_of_a_device_that_is_absent(fake: Any) -> None:
    (answer,) = unamp.check(MINE, device="gpu").answers
    assert answer.refused == "there is no such device here; there is: cpu"


def test_check_with_nobody_to_ask_is_no_yes() -> None:
    asking = "import unamp; unamp.check(unamp.Policy()).require()"
    assert (
        "FrameworkNotSupported: no framework is imported that could be asked"
        in ended("-c", asking).stderr
    )


def test_check_names_what_is_wrong(fake: Any) -> None:
    with pytest.raises(TypeError, match="policy must be an unamp.Policy, not str"):
        unamp.check("O1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="unknown device 'tpu'"):
        unamp.check(MINE, device="tpu")
    with pytest.raises(ValueError, match="unknown framework 'caffe'"):
        unamp.check(MINE, framework="caffe")
    with pytest.raises(TypeError, match="must be the import name of one framework"):
        unamp.check(MINE, framework=["fake"])  # type: ignore[arg-type]
