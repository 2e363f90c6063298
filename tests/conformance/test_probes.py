"""The probe passes honest adapters and finds the defects of dishonest ones."""

from contextlib import nullcontext

import pytest
from pretenders import (
    Pretender,
    emulating,
    forgetful,
    honest,
    mistaken,
    relabelling,
    rounding_inputs_only,
)
from unamp_conformance.check.cases import Case, cases
from unamp_conformance.check.opchecks import check_operation, expected_precision
from unamp_conformance.check.probes import Probe, Unsuitable
from unamp_conformance.run.plan import Item
from unamp_conformance.run.worker import perform
from unamp_conformance.subjects import Subject
from unamp_torch.conformance.operations import TorchOperations

from unamp.policy import Policy, Rule
from unamp.vocabulary import vocabulary

OPS = (
    "matmul linear conv2d exp softmax mean mul gelu mse_loss linalg_vector_norm prod avg_pool2d"
).split()
#: Operations that move values compute nothing: a relabelled result is right.
MOVING = ["cat", "relu", "max_pool2d", "gather"]
LOW = ["float16", "bfloat16"]


def complaint(manner, op, policy, *, full=False):
    subject = Pretender(manner)
    return check_operation(subject, Probe(cases()[op], subject), policy, full=full)[0]


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("op", [*OPS, *MOVING])
@pytest.mark.parametrize("manner", [honest, emulating])
def test_an_honest_adapter_passes(manner, op, dtype):
    assert complaint(manner, op, Policy("O1", dtype, allow=(op,)), full=True) == ""
    assert complaint(manner, op, Policy("O1", dtype, deny=(op,)), full=True) == ""


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("manner", [relabelling, rounding_inputs_only, mistaken, forgetful])
def test_a_dishonest_adapter_is_caught(manner, op, dtype):
    assert "forward: computed in" in complaint(manner, op, Policy("O1", dtype, allow=(op,)))


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
def test_a_low_complex_result_is_rounded():
    import torch

    def found(manner):
        def low(call, args, dtype):
            return manner(call, args, dtype).to(torch.complex32)

        return complaint(low, "polar", Policy("O1", "float16", allow=("polar",)))

    assert found(emulating) == ""
    assert "(computed in float32; only the result was rounded to float16)" in found(relabelling)


@pytest.mark.parametrize("op", MOVING)
def test_forgetting_shows_in_what_only_moves_values(op):
    assert "computed in float32" in complaint(forgetful, op, Policy("O1", "bfloat16", allow=(op,)))


@pytest.mark.parametrize("op", OPS)
def test_a_forgotten_deny_is_caught(op):
    assert "low inputs, forward: computed in bfloat16" in complaint(
        forgetful, op, Policy("O1", "bfloat16", deny=(op,))
    )


def test_a_gradient_in_the_wrong_precision_is_caught():
    import torch

    class Straight(torch.autograd.Function):
        """Compute low, and pass the gradient on in float32."""

        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a.bfloat16() * b.bfloat16()

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g.float() * b, g.float() * a

    message = complaint(
        lambda call, args, dtype: Straight.apply(*args),
        "mul",
        Policy("O1", "bfloat16", allow=("mul",)),
    )
    assert "float32 inputs, forward" not in message
    assert "float32 inputs, backward of input 0" in message


def test_widest_needs_mixed_inputs_in_float32():
    policy = Policy("O1", "bfloat16")
    assert policy.decide("add") is Rule.WIDEST
    assert complaint(honest, "add", policy) == ""  # torch promotes by itself

    class Narrowing(Pretender):
        def __getitem__(self, op):
            function = TorchBinding(op)
            return lambda *args, **kw: function(
                *(a.bfloat16() if self.policy else a for a in args), **kw
            )

    from unamp_torch.conformance.operations import TorchOperations

    TorchBinding = TorchOperations().__getitem__  # noqa: N806
    subject = Narrowing(honest)
    probe = Probe(cases()["add"], subject)
    probe.ready()
    assert (
        "mixed inputs, forward: computed in bfloat16" in check_operation(subject, probe, policy)[0]
    )


@pytest.mark.parametrize(
    ("rule", "feed", "expected"),
    [
        (Rule.LOW, "float32", "bfloat16"),
        (Rule.LOW, "mixed", "bfloat16"),
        (Rule.FP32, "low", "float32"),
        (Rule.WIDEST, "float32", "float32"),
        (Rule.WIDEST, "low", "bfloat16"),
        (Rule.WIDEST, "mixed", "float32"),
        (Rule.UNTOUCHED, "low", "bfloat16"),
        (Rule.UNTOUCHED, "mixed", None),
    ],
)
def test_what_a_rule_means(rule, feed, expected):
    assert expected_precision(rule, feed, "bfloat16") == expected


def test_dull_inputs_are_refused():
    with pytest.raises(Unsuitable, match="mul: its inputs do not tell the precisions apart"):
        Probe(Case("mul", ("ones 4x8", "ones 4x8")), Pretender(honest)).ready()


def test_a_result_of_nothing_but_zeros_is_refused():
    with pytest.raises(Unsuitable, match="sub: .*its results are zeros"):
        Probe(Case("sub", ("ones 4x8", "ones 4x8")), Pretender(honest)).ready()


def test_an_adapter_without_an_optimizer_does_not_pass_the_check_of_one():
    class Bare(TorchOperations):
        adam = property()

    subject = Subject("torch", "cpu")
    vars(subject)["operations"] = Bare()
    item = Item(
        "behaviour",
        "optimizer_in_one_region",
        {"O1 bfloat16 unamp": Policy("O1", "bfloat16")},
        ("behaviour",),
    )
    (found,) = perform(subject, item)
    assert (found.status, found.message) == ("not applicable", "torch has no operation adam")


def test_an_operation_that_a_policy_says_nothing_about_does_not_pass():
    policies = {
        f"O1 bfloat16 {name}": Policy("O1", "bfloat16", preset=name) for name in ("native", "unamp")
    }
    left, stated = perform(Subject("torch", "cpu"), Item("operation", "zeta", policies, ("probe",)))
    assert (left.status, left.message) == (
        "not applicable",
        "the preset leaves it to the framework",
    )
    assert stated.status == "passed"


def test_every_case_is_of_the_vocabulary():
    assert sorted(set(cases()) - set(vocabulary())) == []


def test_every_operation_of_torch_has_a_case_or_a_reason():
    from unamp_conformance.gaps import gaps_of

    spelled = {op.name for op in vocabulary().values() if "torch" in op.spellings}
    excused = {s for gap in gaps_of("torch") if gap.check == "coverage" for s in gap.subjects}
    assert sorted(spelled - set(cases()) - excused) == []


def test_outside_every_region_torch_computes_in_float32():
    operations = Pretender(honest)
    for op in OPS:
        assert {f.precisions for f in Probe(cases()[op], operations).look(nullcontext)} == {
            frozenset({"float32"})
        }, op


@pytest.mark.parametrize("feed", ["float32", "low", "mixed"])
@pytest.mark.parametrize("rule", ["low", "float32", "kept"])
def test_a_rule_that_is_broken_for_one_feed_alone_is_caught(rule, feed):
    """The policies of a thorough run find the defect, whatever the result's dtype."""
    from unamp_conformance.meta.mutants import KINDS, MutableSubject
    from unamp_conformance.meta.noticing import NOTICED, Bench

    kind = KINDS[f"forward, {feed} inputs, rule {rule}"]
    assert dict(Bench(MutableSubject("torch", "cpu")).verdicts("atan2", [kind])) == {
        kind.name: NOTICED
    }


def test_eigenvalues_are_held_against_each_other_in_whatever_order_they_come():
    def reversing(call, args, dtype):
        return emulating(call, args, dtype).flip(-1)

    allowing = Policy("O1", "bfloat16", allow=("linalg_eigvals",))
    assert complaint(reversing, "linalg_eigvals", allowing, full=True) == ""
    assert "computed in float32" in complaint(forgetful, "linalg_eigvals", allowing)


@pytest.mark.parametrize("op", ["nll_loss", "gather"])
def test_float32_that_is_low_on_its_way_is_caught_where_values_only_move(op):
    def narrowing(call, args, dtype):
        return emulating(lambda *given: mistaken(call, given, dtype), args, dtype)

    assert complaint(honest, op, Policy("O1", "bfloat16", deny=(op,))) == ""
    assert "float32 inputs, forward: computed in" in complaint(
        narrowing, op, Policy("O1", "bfloat16", deny=(op,))
    )


def test_a_later_call_is_looked_at_where_numbers_are_random():
    from unamp_conformance.meta.mutants import KINDS, MutableSubject
    from unamp_conformance.meta.noticing import NOTICED, Bench

    kind = KINDS["second call"]
    assert dict(Bench(MutableSubject("torch", "cpu")).verdicts("normal", [kind])) == {
        kind.name: NOTICED
    }


def test_an_old_input_is_a_defect_where_chance_has_its_numbers_from_there_alone():
    """For an operation that takes nothing but a shape this is no defect.

    There the mutant does the same as the adapter.
    """
    from unamp_conformance.meta.mutants import KINDS, MutableSubject
    from unamp_conformance.meta.noticing import SAME, Bench

    bench, kind = Bench(MutableSubject("torch", "cpu")), KINDS["stale cast"]
    assert dict(bench.verdicts("rand_like", [kind])) == {kind.name: SAME}
    assert dict(bench.verdicts("bernoulli", [kind])) == {kind.name: "random"}


def test_a_result_of_another_size_is_caught_where_its_numbers_do_not_tell():
    def cutting(call, args, dtype):
        return honest(call, args, dtype)[:-1]

    assert complaint(honest, "rand_like", Policy("O1", "bfloat16", allow=("rand_like",))) == ""
    assert "numbers, and" in complaint(
        cutting, "rand_like", Policy("O1", "bfloat16", allow=("rand_like",))
    )
