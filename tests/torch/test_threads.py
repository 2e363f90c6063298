"""A region belongs to its thread: threads, processes, DataLoader workers and coroutines."""

from __future__ import annotations

import functools
import itertools
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import threaded
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from unamp_torch import patches

import unamp
from unamp import Policy, policy_region

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16

TAKES_OVER = Policy("O1", "bfloat16", allow=("add", "exp"), deny="mm")


def report() -> tuple[Any, ...]:
    """Return the policy in force at the call, and the dtypes that it leads to."""
    x = torch.rand(4, 4)
    return (
        unamp.current_policy(),
        unamp.is_autocast_enabled(),
        torch.is_autocast_enabled("cpu"),
        (x @ x).dtype,
        (x + x).dtype,
        torch.mm(x, x).dtype,
        x.bfloat16().exp().dtype,
    )


NOTHING = (None, False, False, F32, F32, F32, BF16)


def test_a_region_in_another_thread_is_not_seen_here(native_state: Callable[[], Any]) -> None:
    before = native_state()
    with threaded.open_in_another_thread(TAKES_OVER, report) as seen:
        assert report() == NOTHING
        assert native_state() == before
        with policy_region(Policy("O3", "float16", deny="add")):
            x = torch.rand(4, 4)
            assert ((x @ x).dtype, (x + x).dtype) == (F16, F32)
            t = x.clone().requires_grad_()
            (t @ t).float().sum().backward()
    assert seen == [(TAKES_OVER, True, True, BF16, BF16, F32, BF16)]


def test_torchs_own_autocast_in_another_thread_is_unaffected() -> None:
    def plain() -> tuple[Any, ...]:
        with torch.autocast("cpu", dtype=F16):
            x = torch.rand(4, 4)
            t = torch.rand(4, 4, requires_grad=True)
            (x @ t).float().sum().backward()
            return (
                (x @ x).dtype,
                (x + x).dtype,
                x.half().exp().dtype,
                t.grad.dtype,
                torch.func.grad(lambda a: (a + 1).sum())(x).dtype,
            )

    with ThreadPoolExecutor(1) as pool:
        alone = pool.submit(plain).result()
        with policy_region(TAKES_OVER), unamp.trace():
            beside = pool.submit(plain).result()
    assert alone == beside == (F16, F32, F16, F32, F32)


# --- processes ------------------------------------------------------------------------------------


class Reports(Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Tensor:
        found = report()
        return torch.tensor(
            [
                found[0] is None,
                not found[1],
                not found[2],
                *(d == F32 for d in found[3:6]),
                found[6] == BF16,
            ]
        )


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_data_loader_workers_do_not_inherit_a_region(context: str) -> None:
    with policy_region(TAKES_OVER):
        loader = DataLoader(
            Reports(),
            batch_size=2,
            num_workers=1 if context == "spawn" else 2,
            multiprocessing_context=context,
        )
        assert all(batch.all() for batch in loader)
        assert report()[:2] == (TAKES_OVER, True)


@pytest.mark.parametrize(
    "policy", [Policy("O1", "bfloat16", deny="mm"), Policy("O2", "bfloat16")], ids=str
)
def test_replicas_of_a_network_are_in_the_region(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    module: Any = sys.modules["torch.nn.parallel.data_parallel"]

    def run(modules: Any, inputs: Any, *_: Any) -> list[Any]:
        """Train as PyTorch does on several GPUs."""
        enabled = torch.is_autocast_enabled("cpu")

        def replica(network: nn.Module, given: Any) -> Any:
            with torch.autocast("cpu", torch.float16, enabled=enabled):
                return network(*given)

        with ThreadPoolExecutor(2) as threads:
            return [*threads.map(replica, modules, inputs)]

    class Network(nn.Module):
        def forward(self, x: Tensor) -> tuple[Any, ...]:
            return report()

    replicas, inputs = [Network(), Network()], [(torch.ones(2),)] * 2
    monkeypatch.setattr(module, "parallel_apply", run)
    parallel = nn.DataParallel(Network())
    outside = report()
    with policy_region(policy):
        assert parallel.parallel_apply(replicas, inputs, [{}, {}]) == [report()] * 2
        with unamp.autocast(enabled=False):
            assert parallel.parallel_apply(replicas, inputs, [{}, {}]) == [report()] * 2
    assert parallel.parallel_apply(replicas, inputs, [{}, {}]) == [outside] * 2
    assert module.parallel_apply is run


def test_a_forked_process_does_not_inherit_a_region() -> None:
    def child(pipe: Any) -> None:
        first = report()
        with policy_region(TAKES_OVER):
            second = report()
        pipe.send([*(str(v) for v in first), str(second[4]), str(report())])

    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    with policy_region(TAKES_OVER):
        process = fork.Process(target=child, args=(sender,))
        process.start()
        assert receiver.poll(60)
        found = receiver.recv()
        process.join()
    assert found == [*(str(v) for v in NOTHING), "torch.bfloat16", str(NOTHING)]


@pytest.fixture
def in_child() -> Callable[[Callable[[], bool]], bool]:
    """Run a function in a forked process; return whether it returned True there.

    An error counts as False.
    """

    def run(function: Callable[[], bool]) -> bool:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                code = 0 if function() else 1
            finally:
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status) == 0

    return run


def test_a_process_forked_inside_goes_on_inside(
    in_child: Callable[[Callable[[], bool]], bool],
) -> None:
    with policy_region(TAKES_OVER):
        inside = report()
        assert in_child(lambda: report() == inside)
        with unamp.autocast(enabled=False):
            off = report()
            assert in_child(lambda: report() == off)
        assert report() == inside
    assert report() == NOTHING


def test_a_forked_process_leaves_the_regions_that_it_was_forked_in() -> None:
    with policy_region(Policy("O1", F16)):
        outer = report()
        with policy_region(TAKES_OVER):
            inside, pid = report(), os.fork()
            found = report()
        left = report()
    if pid == 0:
        os._exit(0 if (found, left, report()) == (inside, outer, NOTHING) else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert (found, left, report()) == (inside, outer, NOTHING)


def test_a_decorated_function_that_forks(in_child: Callable[[Callable[[], bool]], bool]) -> None:
    @policy_region(TAKES_OVER)
    def forking() -> Any:
        return os.fork(), report()

    pid, inside = forking()
    if pid == 0:
        os._exit(0 if inside[1] and report() == NOTHING else 1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_a_process_forked_twice(in_child: Callable[[Callable[[], bool]], bool]) -> None:
    with policy_region(TAKES_OVER):
        inside = report()
        assert in_child(lambda: in_child(lambda: report() == inside) and report() == inside)


# --- many threads at once -------------------------------------------------------------------------


def stress_policies() -> Iterator[tuple[Policy, list[torch.dtype]]]:
    """Yield policies, each with the dtypes of `mm`, `add`, `exp`, `softmax` under it."""
    for low in (BF16, F16):
        yield Policy("O1", low), [low, F32, F32, F32]
        yield Policy("O1", low, preset="torch-cpu"), [low, F32, F32, F32]
        yield Policy("O1", low, preset="native"), [low, F32, F32, F32]
        yield Policy("O1", low, allow=("add", "exp"), deny="mm"), [F32, low, low, F32]
        yield Policy("O2", low, deny="softmax"), [low, low, low, F32]
        yield Policy("O3", low), [low, low, low, low]
        yield Policy("O3", low, deny="add", cache=False), [low, F32, low, low]
    yield Policy(enabled=False), [F32] * 4


def test_threads_entering_computing_and_leaving_different_policies(
    attributes: Callable[[], Any], native_state: Callable[[], Any]
) -> None:
    before, state = attributes(), native_state()
    cases = list(stress_policies())

    def dtypes(x: Tensor, w: Tensor) -> list[torch.dtype]:
        return [torch.mm(x, w).dtype, (x + x).dtype, x.exp().dtype, torch.softmax(x, 1).dtype]

    def start() -> Callable[[threaded.Case, threaded.Case], str]:
        model, x, after = nn.Linear(4, 4), torch.rand(4, 4), itertools.cycle([True, False])
        reference = None

        def check(case: threaded.Case, inner: threaded.Case) -> str:
            nonlocal reference
            later = next(after)
            with policy_region(case[0]):
                found = dtypes(x, model.weight)
                with policy_region(inner[0]):
                    nested = dtypes(x, model.weight)
                again = dtypes(x, model.weight)
                loss = model(x).float().square().sum()
                if not later:
                    loss.backward()
            if later:
                loss.backward()
            gradient = model.weight.grad
            model.zero_grad()
            if found != case[1] or again != case[1] or nested != inner[1]:
                return f"{found} {again}; {inner[0]}: {nested}"
            if gradient.dtype != F32:
                return f"gradient in {gradient.dtype}"
            if case[0] == cases[0][0]:
                reference = gradient.clone() if reference is None else reference
                if not torch.equal(reference, gradient):
                    return "another gradient than before"
            left = (
                dtypes(x, x) != [F32] * 4
                or unamp.current_policy() is not None
                or torch.is_autocast_enabled("cpu")
            )
            return "still in force after the region" if left else ""

        return check

    threaded.regions_of_all_threads_stay_apart(cases, start)
    assert (attributes(), native_state()) == (before, state)


# --- coroutines -----------------------------------------------------------------------------------


def test_interleaved_coroutines_each_have_their_own_policy() -> None:
    threaded.coroutines_have_their_own_policies(
        lambda: str((torch.rand(2, 2) + 1).dtype).removeprefix("torch.")
    )
    assert report() == NOTHING


def test_a_generator_is_under_its_policy_only_while_it_runs() -> None:
    @unamp.autocast("cpu", allow="add")
    def batches() -> Iterator[torch.dtype]:
        for _ in range(3):
            yield (torch.rand(2) + 1).dtype

    for dtype in batches():
        assert dtype == BF16
        assert report() == NOTHING


def test_threads_that_open_the_first_region_at_once_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switching = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(200):
            # unamp does not know this object yet. It makes a new replacement, in Python code that
            # lets other threads run.
            original = torch.autograd._engine_run_backward
            theirs = functools.partial(original)
            monkeypatch.setattr(torch.autograd, "_engine_run_backward", theirs)
            together = threading.Barrier(4)

            def work(together: threading.Barrier = together) -> None:
                together.wait()
                with policy_region(TAKES_OVER):
                    pass

            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert torch.autograd._engine_run_backward is theirs
            assert not any(isinstance(finder, patches._Imports) for finder in sys.meta_path)
            monkeypatch.undo()
    finally:
        sys.setswitchinterval(switching)
