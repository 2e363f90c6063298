"""A region puts its policy in force and restores the earlier one, whatever happens inside."""

from __future__ import annotations

import contextvars
import inspect
import itertools
import multiprocessing
import os
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unamp
from unamp import Policy, amp_guard, auto_cast, autocast, current_policy, policy_region
from unamp.vocabulary import vocabulary

O1, O2 = Policy("O1", "bfloat16"), Policy("O2", "bfloat16")


# ---- in force and put back


def test_outside_regions_nothing_is_in_force() -> None:
    assert current_policy() is None
    assert unamp.is_autocast_enabled() is False
    assert unamp.get_autocast_dtype() is None


def test_a_region_is_in_force_inside_only(fake: Any) -> None:
    with policy_region(O1):
        assert fake.in_force == [O1]
        assert current_policy() == O1
        assert unamp.is_autocast_enabled() is True
        assert unamp.get_autocast_dtype() == "bfloat16"
    assert fake.in_force == []
    assert current_policy() is None


@pytest.mark.parametrize("off", [Policy(enabled=False), Policy("O0")])
def test_a_disabled_region_is_open_but_changes_nothing(fake: Any, off: Policy) -> None:
    with policy_region(O1), policy_region(off):
        assert current_policy() == off
        assert fake.in_force == [O1, off]
        assert unamp.is_autocast_enabled() is False
        assert unamp.get_autocast_dtype() is None


@given(st.lists(st.sampled_from([O1, O2, Policy(enabled=False)]), max_size=6))
def test_nesting_puts_back_what_was_in_force(stack: list[Policy]) -> None:
    def nest(depth: int) -> None:
        assert current_policy() == (stack[depth - 1] if depth else None)
        if depth < len(stack):
            with policy_region(stack[depth]):
                nest(depth + 1)
            assert current_policy() == (stack[depth - 1] if depth else None)

    nest(0)


def test_a_region_is_reusable_and_re_entrant(fake: Any) -> None:
    region = policy_region(O1)
    for _ in range(2):
        with region, policy_region(O2), region:
            assert fake.in_force == [O1, O2, O1]
    assert fake.in_force == []
    assert len(fake.prepared) == 2, (
        "an adapter prepares a policy once, however often its region is opened"
    )


def test_an_exception_inside_puts_back_and_passes_through(fake: Any) -> None:
    with pytest.raises(KeyError, match="inside"), policy_region(O1):
        raise KeyError("inside")
    assert fake.in_force == []


def test_the_region_is_what_with_gives() -> None:
    with policy_region(O1) as region:
        assert region.policy == O1


@pytest.mark.parametrize("error", [RuntimeError("cannot"), KeyboardInterrupt()])
def test_where_one_framework_cannot_enter_the_others_are_put_back(
    make_adapter: Callable[..., Any], error: BaseException
) -> None:
    first, second = make_adapter("first"), make_adapter("second", fails_on_enter=error)
    with pytest.raises(type(error)), policy_region(O1):
        pytest.fail("the region must not open")
    assert [kind for kind, _ in first.events] == ["enter", "exit"]
    assert second.events == []
    assert current_policy() is None


@pytest.mark.parametrize("which", [0, 1])
def test_where_one_framework_cannot_put_back_the_others_still_are(
    make_adapter: Callable[..., Any], which: int
) -> None:
    adapters = make_adapter("first"), make_adapter("second")
    adapters[which].fails_on_exit = RuntimeError("cannot")
    with pytest.raises(RuntimeError, match="cannot"), policy_region(O1):
        pass
    assert [adapter.in_force for adapter in adapters] == [[], []]
    assert current_policy() is None


def test_where_a_policy_cannot_be_honoured_nothing_is_entered(
    make_adapter: Callable[..., Any],
) -> None:
    first, second = (
        make_adapter("first"),
        make_adapter("second", fails_on_prepare=unamp.NotExpressible("no kernel")),
    )
    with policy_region(O1, framework="first"):
        with pytest.raises(unamp.NotExpressible, match="no kernel"), policy_region(O2):
            pytest.fail("the region must not open")
        assert current_policy() == O1
        assert first.in_force == [O1]
    assert first.in_force == second.in_force == []


def test_regions_close_in_reverse_order(fake: Any) -> None:
    outer, inner = policy_region(O1), policy_region(O2)
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(RuntimeError, match="is not the innermost open region of this thread"):
        outer.__exit__(None, None, None)
    assert fake.in_force == [O1, O2], "a refused exit changes nothing"
    inner.__exit__(None, None, None)
    outer.__exit__(None, None, None)
    with pytest.raises(RuntimeError, match="is not the innermost"):
        outer.__exit__(None, None, None)
    assert fake.in_force == []


def test_an_adapter_registered_later_is_entered_by_regions_made_before(
    make_adapter: Callable[..., Any],
) -> None:
    region = unamp.Region(O1)
    with region:
        pass
    later = make_adapter("later")
    with region:
        assert later.in_force == [O1]


def test_an_adapter_registered_inside_a_region_is_not_exited_without_having_been_entered(
    make_adapter: Callable[..., Any],
) -> None:
    with policy_region(O1):
        later = make_adapter("later")
    assert later.events == []


def test_a_region_can_be_limited_to_one_framework(make_adapter: Callable[..., Any]) -> None:
    one, two = make_adapter("one"), make_adapter("two")
    with policy_region(O1, framework="two"):
        assert (one.in_force, two.in_force) == ([], [O1])


def test_equal_requests_share_a_region(fake: Any) -> None:
    assert policy_region(O1) is policy_region(Policy("O1", "bf16"))
    assert autocast("cpu", "bfloat16") is autocast("cpu", dtype="bfloat16")
    assert autocast("cpu", "bfloat16") is not autocast("gpu", "bfloat16")
    assert autocast(deny=["linear"]).policy == autocast(deny=("linear",)).policy
    # 1 == True: a cache that confuses them would accept a wrong argument.
    assert autocast(enabled=True).policy.enabled is True
    with pytest.raises(TypeError, match="enabled must be True or False"):
        autocast(enabled=1)  # type: ignore[arg-type]


def test_a_list_is_as_good_as_a_tuple_where_a_region_is_asked_for_again(fake: Any) -> None:
    assert autocast(allow=["add"], deny=["linear", "mm"]) is autocast(
        allow=("add",), deny=("linear", "mm")
    )
    assert auto_cast(custom_white_list=["mul"]) is auto_cast(custom_white_list=("mul",))
    with pytest.raises(ValueError, match="unknown"):
        autocast(allow=["no such operation"])


# ---- threads


def test_a_region_is_in_force_in_its_thread_only(fake: Any) -> None:
    seen: list[object] = []
    with policy_region(O1):
        thread = threading.Thread(target=lambda: seen.append(current_policy()))
        thread.start()
        thread.join()
        # A copied context has no region either: a worker opens its own.
        thread = threading.Thread(
            target=lambda: contextvars.copy_context().run(lambda: seen.append(current_policy()))
        )
        thread.start()
        thread.join()
    assert seen == [None, None]


def test_threads_share_a_region_without_seeing_each_other() -> None:
    region, wrong, start = policy_region(O1), [], threading.Barrier(8)

    def work(number: int) -> None:
        mine = policy_region(Policy(deny=sorted(unamp.vocabulary())[number]))
        start.wait()
        for _ in range(300):
            with region, mine:
                if current_policy() != mine.policy:
                    wrong.append(number)
                with region:
                    if current_policy() != O1:
                        wrong.append(number)
            if current_policy() is not None:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# ---- the spellings


def test_autocast_takes_what_torch_takes() -> None:
    assert list(inspect.signature(autocast).parameters)[:4] == [
        "device_type",
        "dtype",
        "enabled",
        "cache_enabled",
    ]
    region = autocast("cuda", "float16", False, False)
    assert (region.device, region.policy) == ("gpu", Policy(enabled=False, cache=False))
    assert autocast("cpu", "bfloat16", cache_enabled=None).policy.cache is True


@pytest.mark.parametrize(
    ("device_type", "has_gpu", "dtype"),
    [
        ("cpu", True, "bfloat16"),
        ("cuda", False, "float16"),
        ("gpu", False, "float16"),
        (None, False, "bfloat16"),
        (None, True, "float16"),
    ],
)
def test_autocast_without_a_dtype_takes_the_devices(
    fake: Any, device_type: str | None, has_gpu: bool, dtype: str
) -> None:
    fake.has_gpu = has_gpu
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", unamp.AmpWarning)  # about an absent GPU
        assert autocast(device_type).policy.dtype == dtype


def test_a_region_for_a_gpu_that_no_framework_has_is_off(make_adapter: Callable[..., Any]) -> None:
    make_adapter("one"), make_adapter("two")
    with pytest.warns(
        unamp.AmpWarning,
        match="no device 'cuda' here: one has cpu; two has cpu; a region for it changes nothing",
    ):
        assert not autocast("cuda").policy.active
    make_adapter("three", has_gpu=True)
    assert autocast("cuda").policy.active
    with pytest.warns(unamp.AmpWarning, match="no device 'gpu' here: two has cpu"):
        assert not autocast("gpu", framework="two").policy.active


def test_auto_cast_takes_what_paddle_takes() -> None:
    names = ["enable", "custom_white_list", "custom_black_list", "level", "dtype", "use_promote"]
    assert list(inspect.signature(auto_cast).parameters)[:6] == names
    assert amp_guard is auto_cast
    region = auto_cast(True, {"elementwise_add"}, ["conv2d"], "O2", "bfloat16", True)
    assert region.policy == Policy("O2", "bfloat16", ("add",), ("conv2d",), "paddle", promote=True)
    assert auto_cast(custom_white_list="mul").policy.allow == ("matmul_flatten",), (
        "Paddle's `mul` is its old matrix product"
    )
    assert auto_cast().policy == Policy(preset="paddle")
    assert auto_cast(enable=False).policy.active is False


# ---- while a compiler is tracing


@pytest.mark.parametrize(
    "make",
    [
        lambda: policy_region(O1),
        lambda: autocast("cpu", "bfloat16"),
        lambda: auto_cast(dtype="bfloat16"),
    ],
)
def test_while_a_compiler_traces_a_region_is_two_nodes_of_its_graph(
    fake: Any, make: Callable[[], Any]
) -> None:
    eager = make()
    fake.is_compiling = True
    with make():
        assert fake.in_force == []
        assert fake.captured == [("enter", eager)]
    assert fake.captured == [("enter", eager), ("leave", eager)]


def test_a_decorator_made_before_tracing_is_two_nodes_as_well(fake: Any) -> None:
    region = policy_region(O1)
    decorated = region(lambda: list(fake.captured))
    fake.is_compiling = True
    assert decorated() == [("enter", region)]
    assert fake.captured == [("enter", region), ("leave", region)]


# ---- bad input leaves everything as it was


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda: policy_region("O1"), TypeError, "policy must be an unamp.Policy, not str"),
        (lambda: policy_region(None), TypeError, "policy must be an unamp.Policy, not NoneType"),
        (lambda: policy_region(O1, framework="mxnet"), ValueError, "unknown framework 'mxnet'"),
        (
            lambda: policy_region(O1, framework="torch"),
            unamp.FrameworkNotSupported,
            "torch is not imported",
        ),
        (
            lambda: autocast("tpu"),
            ValueError,
            "unknown device_type 'tpu'; valid: 'cpu', 'gpu', 'cuda', or None",
        ),
        (lambda: autocast(3), TypeError, "device_type must be a string.*or None, not int"),
        (
            lambda: autocast(lambda x: x),
            TypeError,
            r"write @unamp\.autocast\(\) above the function",
        ),
        (
            lambda: auto_cast(lambda x: x),
            TypeError,
            r"write @unamp\.auto_cast\(\) above the function",
        ),
        (lambda: autocast(dtype="int8"), ValueError, "valid: 'float16', 'bfloat16'"),
        (lambda: autocast(dtype=object()), TypeError, "dtype must be a string or a dtype object"),
        (lambda: autocast(level="O5"), ValueError, "unknown level 'O5'"),
        (lambda: autocast(preset="tf"), ValueError, "unknown preset 'tf'"),
        (
            lambda: autocast(allow=["linear"], deny=["linear"]),
            ValueError,
            "in allow and in deny: linear",
        ),
        (
            lambda: autocast("cpu", "bfloat16", cache_enabled=0),
            TypeError,
            "cache must be True or False",
        ),
        (
            lambda: autocast("cpu", "bfloat16", allow=iter([5])),
            TypeError,
            "allow takes operation names",
        ),
        (
            lambda: autocast("cpu", "bfloat16", allow=iter([5]), deny=["add"]),
            TypeError,
            "allow takes operation names",
        ),
        (lambda: autocast(framework="mxnet"), ValueError, "unknown framework 'mxnet'"),
        (
            lambda: auto_cast(custom_white_list=["no_such"]),
            ValueError,
            "unknown operation 'no_such'",
        ),
        (lambda: auto_cast(custom_white_list=3), TypeError, "allow takes operation names"),
        (lambda: auto_cast(dtype=None), TypeError, "dtype must be a string or a dtype object"),
        (lambda: auto_cast(enable="yes"), TypeError, "enabled must be True or False"),
    ],
)
def test_bad_arguments_raise_and_leave_everything_as_it_was(
    fake: Any, make: Callable[[], object], error: type[Exception], says: str
) -> None:
    with policy_region(O1):
        with pytest.raises(error, match=says):
            make()
        assert current_policy() == O1
        assert fake.in_force == [O1]
    assert fake.in_force == []


def test_hundreds_of_policies_in_turn_are_prepared_once_each(fake: Any) -> None:
    names = [name for name in vocabulary() if vocabulary()[name].group == "elementwise"][:17]
    for _ in range(2):
        for first, second in itertools.product(names, names):
            with unamp.autocast(
                "cpu", "bfloat16", allow=[first], deny=[] if first == second else [second]
            ):
                pass
    assert (
        len(fake.prepared) == len({policy for policy, _ in fake.prepared}) == len(names) ** 2 > 256
    )


# --- processes ------------------------------------------------------------------------------------


def _exit_code(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_goes_on_inside_and_leaves(fake: Any) -> None:
    with unamp.policy_region(O1), unamp.policy_region(O2):
        pid = os.fork()
        inside = list(fake.in_force), unamp.current_policy()
    after = list(fake.in_force), unamp.current_policy()
    if pid == 0:
        os._exit(0 if (inside, after) == (([O1, O2], O2), ([], None)) else 1)
    assert _exit_code(pid) == 0
    assert (inside, after) == (([O1, O2], O2), ([], None))


def test_a_worker_starts_outside(fake: Any) -> None:
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def work() -> None:
        sender.send((list(fake.in_force), unamp.current_policy()))

    with unamp.policy_region(O1):
        worker = context.Process(target=work)
        worker.start()
        worker.join()
        assert receiver.recv() == ([], None)
        assert fake.in_force == [O1]


def test_a_region_that_does_not_open_again_is_said(fake: Any) -> None:
    region = unamp.policy_region(O1)
    region.__enter__()
    fake.fails_on_enter = ValueError("no more")
    if (pid := os.fork()) == 0:
        try:
            region.__exit__(None, None, None)
        except RuntimeError as error:
            os._exit(0 if "not the innermost open region" in str(error) else 1)
        os._exit(1)
    fake.fails_on_enter = None
    region.__exit__(None, None, None)
    assert _exit_code(pid) == 0
