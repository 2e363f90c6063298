"""`unamp.trace` reports torch's operations as they ran."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from traced import (  # noqa: F401
    results_do_not_depend_on_a_trace,
    test_a_float32_run_and_a_low_one_are_compared,
    test_a_trace_keeps_no_tensor_and_no_network,
    test_asking_for_operations_leaves_no_record,
    test_other_threads_are_not_recorded,
    test_the_first_infinity_has_its_layer,
    test_the_first_infinity_is_found_where_it_comes_from,
    test_underflow_is_seen,
    values_are_those_of,
    work_is_counted,
)
from unamp_conformance.check.cases import cases

import unamp
from unamp import OpRecord, Policy, Rule, policy_region
from unamp.adapter import major_minor
from unamp.adapter.registry import adapter_for
from unamp.tracing import Work, work_of

F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


def records(policy: Policy | None, call) -> list[OpRecord]:
    with unamp.trace() as trace:
        if policy is None:
            call()
        else:
            with policy_region(policy):
                call()
    return trace.records


def only(policy: Policy | None, call, op: str) -> OpRecord:
    (found,) = [r for r in records(policy, call) if r.op == op]
    return found


x = torch.rand(4, 4)


def test_a_low_operation() -> None:
    found = only(Policy("O1", "bfloat16"), lambda: x @ x, "matmul")
    assert (found.rule, found.inputs, found.compute, found.output) == (
        Rule.LOW,
        ("float32", "float32"),
        "bfloat16",
        "bfloat16",
    )
    assert found.native == "aten::matmul"
    assert not found.emulated


@pytest.mark.parametrize("preset", ["unamp", "torch-cuda"])
def test_a_denied_operation(preset: str) -> None:
    found = only(Policy("O1", "float16", preset=preset), lambda: x.half().exp(), "exp")
    assert (found.rule, found.inputs, found.compute, found.output) == (
        Rule.FP32,
        ("float16",),
        "float32",
        "float32",
    )


def test_an_operation_carried_out_by_native_autocast_is_seen_as_well() -> None:
    policy = Policy("O1", "bfloat16", preset="native")
    found = only(policy, lambda: F.linear(x, x), "linear")
    assert (found.rule, found.inputs[:2], found.compute, found.output) == (
        Rule.LOW,
        ("float32",) * 2,
        "bfloat16",
        "bfloat16",
    )


def test_a_widest_operation() -> None:
    found = only(Policy("O1", "bfloat16"), lambda: torch.add(x, x.bfloat16()), "add")
    assert (found.rule, found.inputs, found.output) == (
        Rule.WIDEST,
        ("float32", "bfloat16"),
        "float32",
    )
    found = only(Policy("O1", "bfloat16"), lambda: torch.cat([x.bfloat16(), x.bfloat16()]), "cat")
    assert (found.rule, found.inputs, found.compute, found.output) == (
        Rule.WIDEST,
        ("bfloat16",) * 2,
        "bfloat16",
        "bfloat16",
    )


def test_an_emulated_operation() -> None:
    found = only(
        Policy("O1", "float16", allow="linalg_inv"),
        lambda: torch.linalg.inv(x + 4 * torch.eye(4)),
        "linalg_inv",
    )
    assert found.emulated
    assert (found.compute, found.output) == ("float16", "float16")


def test_outside_regions_and_in_disabled_ones_the_rule_is_untouched() -> None:
    for policy in (None, Policy(enabled=False), Policy("O0")):
        found = only(policy, lambda: x.bfloat16() @ x.bfloat16(), "matmul")
        assert (found.rule, found.inputs, found.compute, found.output) == (
            Rule.UNTOUCHED,
            ("bfloat16",) * 2,
            "bfloat16",
            "bfloat16",
        )


def test_an_operation_is_one_record_whatever_it_is_made_of() -> None:
    for op, call in {
        "einsum": lambda: torch.einsum("ij,jk->ik", x, x),
        "cross_entropy": lambda: F.cross_entropy(x, torch.zeros(4, dtype=torch.long)),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(
            x[None], x[None], x[None]
        ),
        "lstm": lambda: nn.LSTM(4, 4)(x[None]),
    }.items():
        found = records(Policy("O1", "bfloat16", deny="tanh"), call)
        assert [r.op for r in found] == [op]


def test_a_trace_opened_inside_a_region_and_regions_opened_inside_a_trace() -> None:
    with unamp.autocast("cpu", allow="add"):
        with unamp.trace() as inner:
            y = x + x
        z = x + x
    assert y.dtype == z.dtype == BF16
    assert [r.op for r in inner.records] == ["add"]
    with unamp.trace() as trace:
        _ = x + x
        with unamp.autocast("cpu", "bfloat16", allow="add"):
            _ = x + x
        with unamp.autocast("cpu", "float16", allow="add"):
            _ = x + x
    assert [(r.rule, r.compute) for r in trace.records] == [
        (Rule.UNTOUCHED, "float32"),
        (Rule.LOW, "bfloat16"),
        (Rule.LOW, "float16"),
    ]


def test_operations_after_an_error_are_still_recorded() -> None:
    with unamp.trace() as trace, unamp.autocast("cpu"):
        with pytest.raises(RuntimeError):
            torch.mm(x, torch.rand(3, 3))
        torch.mm(x, x)
    assert [(r.op, r.compute) for r in trace.records if r.output][-1] == ("mm", "bfloat16")


def test_the_table_and_the_records_agree() -> None:
    with unamp.trace() as trace, unamp.autocast("cpu") as region:
        for _ in range(3):
            torch.mm(x, x)
    assert (
        trace.table().splitlines()[1].split()
        == "- mm low float32 float32 bfloat16 bfloat16 6 576 B 100.0% 3".split()
    )
    shape = (4, 4)
    mm = OpRecord(
        "mm", "aten::mm", Rule.LOW, ("float32", "float32"), "bfloat16", "bfloat16", casts=2,
        cast_bytes=192, framework="torch", policy=region.policy, input_shapes=(shape, shape),
        output_shape=shape,
    )  # fmt: skip
    assert trace.records == [mm] * 3


POLICIES = [
    Policy("O1", "bfloat16"),
    Policy("O1", "float16", preset="paddle"),
    Policy("O3", "bfloat16"),
]


@pytest.mark.either_kernels
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_trace_agrees_with_the_policys_decision(policy: Policy) -> None:
    operations = adapter_for("torch").operations()
    disagreeing, seen = {}, 0
    for op in sorted(operations.names() & cases().keys()):
        case = cases()[op]
        rule = policy.decide(op)
        if rule not in (Rule.LOW, Rule.FP32) or case.own_dtype:
            continue
        if op == "adaptive_log_softmax" and op not in (*policy.allow, *policy.deny):
            # a declared gap: torch's layer writes float32 into a result of its input's dtype
            continue
        given = F32 if rule is Rule.LOW else BF16
        if op in ("dirichlet", "gamma") and given == BF16:
            # a declared gap: torch has neither an operator that unamp could take over nor a low
            # kernel
            continue
        arrays = case.inputs(0)
        eligible = case.eligible(arrays)
        tensors = [operations.tensor(a) for a in arrays]
        tensors = [t.to(given) if n in eligible else t for n, t in enumerate(tensors)]
        try:
            with unamp.trace() as trace, policy_region(policy):
                case.call(operations[op], tensors)
        except RuntimeError as error:
            disagreeing[op] = error
            continue
        own = [r for r in trace.records if r.op == op]
        if not own:
            continue
        seen += 1
        wanted = policy.dtype if rule is Rule.LOW else "float32"
        if any(r.rule is not rule or (r.compute or wanted) != wanted for r in own):
            disagreeing[op] = own
    assert not disagreeing
    assert seen > {"O1": 40, "O3": 200}[policy.level]


# --- layers, casts, values ------------------------------------------------------------------------


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(self.head(self.body(x)), -1)


PLACES = [
    ("linear", "Net.body.0"), ("relu", "Net.body.1"), ("layer_norm", "Net.body.2"),
    ("linear", "Net.head"), ("softmax", "Net"),
]  # fmt: skip


def made() -> tuple[nn.Module, Tensor]:
    return Net(), torch.rand(3, 8)


LOW = Policy("O1", "bfloat16")


@pytest.mark.parametrize(
    "policy",
    [None, LOW, Policy("O1", "bfloat16", preset="native"), Policy("O2", "float16")],
    ids=repr,
)
def test_every_operation_says_in_which_layer_it_ran(policy: Policy | None) -> None:
    net = Net()

    def call() -> None:
        net(torch.rand(3, 8))
        torch.rand(3).sum()

    assert [(r.op, r.layer) for r in records(policy, call)] == [*PLACES, ("sum", None)]


def test_a_network_of_auto_mixed_precision_has_the_names_of_its_own() -> None:
    low = unamp.auto_mixed_precision(Net(), "O2", "bfloat16")
    assert [r.layer for r in records(None, lambda: low(torch.rand(3, 8)))][:2] == [
        "Net.body.0",
        "Net.body.1",
    ]


def test_a_layer_that_raises_is_left() -> None:
    net, odd = Net(), torch.rand(3, 7)

    def call() -> None:
        with pytest.raises(RuntimeError):
            net(odd)
        odd.exp()

    assert records(None, call)[-1].layer is None
    hooks = torch.nn.modules.module
    assert not hooks._global_forward_hooks
    assert not hooks._global_forward_pre_hooks


def test_a_trace_inside_a_layer_knows_where_it_is() -> None:
    found = []

    class Watching(Net):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with unamp.trace() as inner:
                x = super().forward(x)
            found.extend(inner.records)
            return x

    with unamp.trace() as outer:
        nn.Sequential(Watching())(torch.rand(2, 8))
    assert [r.layer for r in found][:2] == ["Sequential.0.body.0", "Sequential.0.body.1"]
    assert outer.records == found


def test_other_threads_are_neither_recorded_nor_confused() -> None:
    net, go, done = Net(), threading.Event(), threading.Event()

    def other() -> None:
        go.wait()
        net(torch.rand(3, 8))
        done.set()

    class Waiting(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            go.set()
            done.wait()
            return x.exp()

    thread = threading.Thread(target=other)
    thread.start()
    found = records(None, lambda: nn.Sequential(Waiting())(torch.rand(2)))
    thread.join()
    assert [(r.op, r.layer) for r in found] == [("exp", "Sequential.0")]


def test_casts_are_counted_with_what_they_move() -> None:
    linear, given = nn.Linear(8, 4), torch.rand(3, 8)

    def call() -> None:
        linear(given)
        linear(given.bfloat16())  # the parameters' casts are kept in the region
        (torch.rand(5).bfloat16() + torch.rand(5)).exp()

    for policy in (
        LOW,
        Policy("O1", "bfloat16", preset="native"),
        Policy("O1", "bfloat16", preset="torch-cuda"),
    ):
        numbers = {"x": 24, "w": 32, "b": 4}
        first, second, add, *_ = records(policy, call)
        assert (first.casts, first.cast_bytes) == (3, 6 * sum(numbers.values()))
        kept = major_minor(torch.__version__) >= (2, 11)  # older versions keep no cast
        assert (second.casts, second.cast_bytes) == ((0, 0) if kept else (2, 6 * 36))
        assert (add.op, add.casts) == ("add", 0)  # torch promotes in the kernel itself
    uncached = records(Policy("O1", "bfloat16", cache=False), call)[1]
    assert (uncached.casts, uncached.cast_bytes) == (2, 6 * 36)
    denied = only(Policy("O1", "bfloat16"), lambda: x.bfloat16().exp(), "exp")
    assert (denied.casts, denied.cast_bytes) == (1, 6 * 16)
    assert [
        (r.casts, r.cast_bytes)
        for r in records(None, lambda: (x.bfloat16() @ x.bfloat16(), x.exp()))
    ] == [(0, 0)] * 2


def test_casts_back_and_casts_of_an_emulated_operation() -> None:
    widened = only(Policy("O1", "bfloat16", widen_results=True), lambda: x @ x, "matmul")
    assert (widened.output, widened.casts, widened.cast_bytes) == ("float32", 3, 6 * 48)
    emulated = only(
        Policy("O1", "float16", allow="linalg_inv"),
        lambda: torch.linalg.inv(x + 4 * torch.eye(4)),
        "linalg_inv",
    )
    assert (emulated.emulated, emulated.casts, emulated.cast_bytes) == (True, 1, 6 * 16)


def test_what_an_operation_casts_by_itself_is_not_counted() -> None:
    q, k, v = (torch.rand(1, 2, 4, 4, dtype=BF16) for _ in range(3))

    def call() -> None:
        # computes in float32 inside, whatever its input
        F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)

    for preset in ("unamp", "native"):
        assert [r.casts for r in records(Policy("O1", "bfloat16", preset=preset), call)] == [0]


def test_values_are_those_of_the_result() -> None:
    given = torch.randn(30, 7)
    for policy in (None, LOW):
        results = []
        with unamp.trace(values=True) as trace, policy_region(policy or Policy("O0")):
            results += [given @ given.T, given.exp(), torch.sort(given, 0)[0], given.double().sum()]
        assert len(trace.records) == 4
        for record, result in zip(trace.records, results, strict=True):
            values_are_those_of(record, result.double().numpy())


def test_without_values_no_number_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []
    for name in ("item", "tolist", "numpy", "__bool__", "__float__"):
        monkeypatch.setattr(torch.Tensor, name, lambda *args, name=name: read.append(name))
    net = Net()
    assert all(r.values is None for r in records(LOW, lambda: net(torch.rand(3, 8))))
    assert read == []


@pytest.mark.parametrize(
    "policy",
    [
        LOW,
        Policy("O3", "bfloat16"),
        Policy("O1", "bfloat16", allow=["add", "square", "abs", "sum", "mean"]),
    ],
    ids=repr,
)
def test_values_and_gradients_do_not_depend_on_being_traced(policy: Policy) -> None:
    def run(trace):
        torch.manual_seed(0)
        net, given = Net(), torch.rand(3, 8)
        with policy_region(policy), trace:
            out = net(given) + 1
        out.float().square().sum().backward()
        found = [out, *(p.grad for p in net.parameters())]
        return [
            *(each.detach().float().numpy() for each in found),
            np.array([str(each.dtype) for each in found]),
        ]

    results_do_not_depend_on_a_trace(run)


def test_inside_a_transform_there_are_no_values() -> None:
    with unamp.trace(values=True) as trace, policy_region(LOW):
        torch.func.vmap(torch.exp)(x)
        torch.func.grad(lambda v: v.sin().sum())(x)
    assert {"exp", "sin"} <= {r.op for r in trace.records}


#: Tensors without a dense array of numbers.
WITHOUT_NUMBERS: dict[str, Callable[[], Tensor]] = {
    "sparse": lambda: torch.rand(4, 4).to_sparse(),
    "csr": lambda: torch.rand(4, 4).to_sparse_csr(),
    "bsr": lambda: torch.rand(4, 4).to_sparse_bsr((2, 2)),
    "nested": lambda: torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)]),
    "jagged": lambda: torch.nested.nested_tensor(
        [torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged
    ),
    "mkldnn": lambda: torch.rand(4, 4).to_mkldnn(),
    "meta": lambda: torch.rand(4, 4, device="meta"),
}


@pytest.mark.filterwarnings("ignore:.*(prototype|beta).*")
@pytest.mark.parametrize("kind", WITHOUT_NUMBERS)
def test_a_tensor_without_numbers_has_no_values_and_the_run_goes_on(kind: str) -> None:
    tensor = WITHOUT_NUMBERS[kind]()
    with unamp.trace(values=True) as trace:
        result = torch.relu(tensor)
        torch.relu(torch.ones(2))
    assert (result.layout, result.device) == (tensor.layout, tensor.device)
    assert [record.values is None for record in trace.records] == [True, False]


def test_a_compiled_function_computes_the_same_while_it_is_traced() -> None:
    net, given = Net(), torch.rand(3, 8)
    compiled = torch.compile(net, backend="aot_eager", fullgraph=True)
    with unamp.autocast("cpu"):
        before = compiled(given)
        with unamp.trace():
            during = compiled(given)
        after = compiled(given)
    assert torch.equal(before, during)
    assert torch.equal(before, after)
    torch.compiler.reset()


def test_loss_scaling_and_steps_are_in_no_trace() -> None:
    layer = torch.nn.Linear(4, 4)
    optimizer, scaler = torch.optim.Adam(layer.parameters()), unamp.GradScaler()
    with unamp.trace(values=True) as trace:
        with unamp.autocast("cpu", torch.float16):
            loss = layer(x).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        torch.mm(x, x)
    assert [record.op for record in trace.records] == ["linear", "sum", "mm"]


# --- work -----------------------------------------------------------------------------------------


def test_the_work_of_operations_is_counted() -> None:
    r = torch.rand
    image, lstm = r(2, 4, 9, 9), nn.LSTM(5, 6, num_layers=2, bidirectional=True)
    # rows, directions, gates, then inputs and states of both layers
    in_layers = 3 * 2 * 4 * 6 * (5 + 6 + 12 + 6)
    work_is_counted(
        {
            "linear": (lambda: F.linear(r(3, 7, 5), r(6, 5), r(6)), 3 * 7 * 5 * 6),
            "matmul": (lambda: torch.matmul(r(2, 3, 4, 5), r(3, 5, 6)), 2 * 3 * 4 * 5 * 6),
            "mm": (lambda: torch.mm(r(4, 5), r(6, 5).T), 4 * 5 * 6),
            "bmm": (lambda: torch.bmm(r(3, 4, 5), r(3, 5, 6)), 3 * 4 * 5 * 6),
            "mv": (lambda: torch.mv(r(4, 5), r(5)), 4 * 5),
            "addmm": (lambda: torch.addmm(r(6), r(4, 5), r(5, 6)), 4 * 5 * 6),
            "baddbmm": (lambda: torch.baddbmm(r(3, 4, 6), r(3, 4, 5), r(3, 5, 6)), 3 * 4 * 5 * 6),
            "addbmm": (lambda: torch.addbmm(r(4, 6), r(3, 4, 5), r(3, 5, 6)), 3 * 4 * 5 * 6),
            "dot": (lambda: torch.dot(r(7), r(7)), 7),
            "outer": (lambda: torch.outer(r(7), r(3)), 21),
            "inner": (lambda: torch.inner(r(4, 5), r(6, 5)), 4 * 5 * 6),
            "tensordot": (lambda: torch.tensordot(r(2, 4, 5), r(4, 5, 6)), 2 * 4 * 5 * 6),
            "bilinear": (lambda: F.bilinear(r(2, 4), r(2, 5), r(6, 4, 5)), 2 * 4 * 5 * 6),
            "chain_matmul": (
                lambda: torch.chain_matmul(r(2, 3), r(3, 4), r(4, 5)),
                2 * 3 * 4 + 2 * 4 * 5,
            ),
            "einsum": (
                lambda: torch.einsum("...bij,bjk->...bik", r(7, 3, 4, 5), r(3, 5, 6)),
                7 * 3 * 4 * 5 * 6,
            ),
            "conv1d": (lambda: F.conv1d(r(2, 4, 9), r(6, 4, 3)), 2 * 6 * 7 * 4 * 3),
            "conv2d": (
                lambda: F.conv2d(image, r(6, 2, 3, 3), groups=2, stride=2),
                2 * 6 * 4 * 4 * 2 * 9,
            ),
            "conv3d": (lambda: F.conv3d(r(2, 4, 5, 5, 5), r(6, 4, 3, 3, 3)), 2 * 6 * 27 * 4 * 27),
            "conv_transpose1d": (
                lambda: F.conv_transpose1d(r(2, 4, 9), r(4, 6, 3), stride=2),
                2 * 4 * 9 * 6 * 3,
            ),
            "conv_transpose2d": (
                lambda: F.conv_transpose2d(image, r(4, 3, 3, 3), groups=2),
                2 * 4 * 81 * 3 * 9,
            ),
            "scaled_dot_product_attention": (
                lambda: F.scaled_dot_product_attention(r(2, 3, 4, 5), r(2, 3, 6, 5), r(2, 3, 6, 7)),
                2 * 3 * 4 * 6 * (5 + 7),
            ),
            "lstm": (lambda: lstm(r(3, 5)[:, None]), in_layers),
            "gru": (lambda: nn.GRU(5, 6, batch_first=True)(r(3, 4, 5)), 12 * 3 * 6 * 11),
            "lstm_cell": (lambda: nn.LSTMCell(5, 6)(r(3, 5)), 3 * 4 * 6 * 11),
            "rnn_cell": (lambda: nn.RNNCell(5, 6)(r(6, 5)), 6 * 6 * 11),
            "layer_norm": (lambda: F.layer_norm(r(3, 7), (7,)), 0),
        }
    )


def test_an_einsum_of_three_is_counted_from_left_to_right() -> None:
    found = only(
        None,
        lambda: torch.einsum(
            "ij, jk, kl -> il", torch.rand(2, 3), torch.rand(3, 4), torch.rand(4, 5)
        ),
        "einsum",
    )
    assert found.equation == "ij,jk,kl->il"
    assert work_of(found) == Work(2 * 3 * 4 + 2 * 4 * 5, 4 * (6 + 12 + 20 + 10))


def test_a_size_that_is_not_known_is_none() -> None:
    nested = torch.nested.nested_tensor([torch.rand(2, 3), torch.rand(4, 3)], layout=torch.jagged)
    found = only(None, lambda: nested @ torch.rand(3, 5), "matmul")
    assert found.input_shapes == ((None, None, None), (3, 5))
    assert work_of(found) is None
    symbolic = []

    def call(x: Tensor) -> Tensor:
        with unamp.trace() as trace:
            y = x.exp()
        symbolic.extend(trace.records)
        return y

    torch.fx.experimental.proxy_tensor.make_fx(call, tracing_mode="symbolic")(torch.rand(4, 7))
    assert all(
        size is None or type(size) is int
        for record in symbolic
        for size in (record.output_shape or ())
    )
