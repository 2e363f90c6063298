"""`unamp.tune` on PyTorch finds units to hold, and its errors name wrong arguments."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tuned
from torch import Tensor, nn
from tuned import test_promises  # noqa: F401

import unamp
from unamp import AmpWarning, Policy, amp_warnings

pytestmark = pytest.mark.beside_kernels

warnings.filterwarnings("ignore", message="on a CPU torch is about", category=AmpWarning)


class Total(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum() / x.numel()


class Soft(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        e = torch.exp(x)
        return e / e.sum(-1, keepdim=True)


class Net(nn.Module):
    def __init__(self, weights: dict[str, np.ndarray]) -> None:
        super().__init__()
        self.first, self.big = (
            nn.Linear(tuned.WIDTH, tuned.WIDTH, False),
            nn.Linear(tuned.WIDTH, tuned.WIDTH, False),
        )
        self.norm, self.total, self.soft = nn.LayerNorm(tuned.WIDTH), Total(), Soft()
        with torch.no_grad():
            self.first.weight.copy_(torch.from_numpy(weights["first"]))
            self.big.weight.copy_(torch.from_numpy(weights["big"]))

    def forward(self, x: Tensor, many: Tensor) -> tuple[Tensor, ...]:
        h = torch.relu(self.first(x))
        return self.norm(self.big(h)), self.total(many), self.soft(h + 12)


def _trained(network: Net, batch: Sequence[Tensor], scale: float) -> tuple[Tensor, list[Tensor]]:
    loss = network.big(torch.relu(network.first(batch[0]))).square().mean()
    gradients = torch.autograd.grad(loss * scale, [network.first.weight, network.big.weight])
    return loss, [gradient / scale for gradient in gradients]


OF = tuned.Tunable(lambda weights: Net(weights).eval(), torch.from_numpy, _trained)


X = [
    torch.randn(4, tuned.WIDTH, generator=torch.Generator().manual_seed(seed)) for seed in range(4)
]


def _overflowing(layers: int = 6, *big: int) -> nn.Sequential:
    """Return linear layers, each before a norm; some overflow in float16."""
    torch.manual_seed(0)
    found: list[nn.Module] = []
    for number in range(layers):
        linear = nn.Linear(tuned.WIDTH, tuned.WIDTH)
        with torch.no_grad():
            linear.weight.mul_(1e6 if number in big else 1.0)
        found += [linear, nn.LayerNorm(tuned.WIDTH)]
    return nn.Sequential(*found).eval()


def _counted(network: nn.Module) -> tuple[Any, list[int]]:
    runs: list[int] = []

    def run(x: Tensor) -> Tensor:
        runs.append(1)
        with torch.no_grad():
            return network(x)  # type: ignore[no-any-return]

    return run, runs


@pytest.mark.parametrize("by", ["place", "operation", "layer"])
@pytest.mark.parametrize("effort", ["halves", "ranked"])
def test_what_is_held_as_one(by: str, effort: str) -> None:
    network = _overflowing(3, 1)
    run, runs = _counted(network)
    found = unamp.tune(run, network, X, by=by, effort=effort)
    assert found.report.runs == len(runs)
    assert found.report.within
    if by == "operation":
        assert found.policy.deny == ("layer_norm", "linear")
        assert not len(found.layers)
        assert "its result reaches" in found.table()
        assert " in 2; float16 ends at 65504" in found.table()
    else:
        assert [(rule.pattern, rule.policy) for rule in found.layers] == [
            ("2", "float32"),
            ("3", "float32"),
        ]
        assert found.policy == Policy("O3", "float16")
        assert "linear: its result reaches" in found.layers.to_toml()


def test_the_file_is_a_precision_file(tmp_path: Path) -> None:
    network = _overflowing(3, 1)
    found = unamp.tune(network, network, X)
    (tmp_path / "precision.toml").write_text(found.to_toml(), "utf-8")
    read = unamp.Precision.read(tmp_path / "precision.toml")
    assert read == found.precision
    with (
        unamp.layer_policies(network, read.layers),
        unamp.policy_region(read.policy),
        unamp.trace() as trace,
    ):
        network(X[0])
    computed = {record.layer: record.compute for record in trace.records}
    assert [name for name, dtype in computed.items() if dtype == "float32"] == [
        "Sequential.2",
        "Sequential.3",
    ]


def test_everything_may_be_low() -> None:
    network = _overflowing(2)
    amp_warnings._given.clear()
    with pytest.warns(
        AmpWarning, match="unamp.tune: everything may run in bfloat16: no exception is needed"
    ):
        found = unamp.tune(network, network, X, dtype="bfloat16", tolerance=0.1)
    assert found.policy == Policy("O3", "bfloat16")
    assert found.report.runs == 2 * 3 + 2 + 1
    assert found.report.low == 1.0
    with found.region():
        assert network(X[0]).dtype is torch.bfloat16


def test_a_preset_that_holds_is_named() -> None:
    """An exp overflows; every deny list has exp."""

    class Exp(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(tuned.WIDTH, tuned.WIDTH)

        def forward(self, x: Tensor) -> Tensor:
            return torch.log(torch.exp(self.linear(x) + 12))

    network = Exp().eval()
    amp_warnings._given.clear()
    with pytest.warns(
        AmpWarning,
        match=r"O1 of the preset torch-cuda already holds, with \d\d\.\d% of the work low",
    ):
        found = unamp.tune(network, network, X)
    assert found.report.remarks
    assert [preset.policy.preset for preset in found.report.presets if preset.holds] == [
        "torch-cuda",
        "unamp",
    ]


def test_a_preset_that_bans_an_operation_is_passed_over() -> None:
    network = _overflowing(3, 1)

    def run(x: Tensor) -> Tensor:
        chances = torch.sigmoid(network(x).float())
        return nn.functional.binary_cross_entropy(
            chances, torch.full_like(chances, 0.5), reduction="none"
        )

    # in float16 PyTorch raises: a NaN is no probability
    found = unamp.tune(run, network, X, tolerance=0.05)
    assert "linear: its result reaches" in found.layers.to_toml()
    assert "in float16, too, run raises RuntimeError" in found.table()
    assert "torch-cuda" not in [preset.policy.preset for preset in found.report.presets]
    assert found.report.within


def test_a_base_keeps_its_deny_list() -> None:
    network = _overflowing(3, 1)
    found = unamp.tune(network, network, X, base=Policy("O2", "float16", deny="layer_norm"))
    assert "layer_norm" in found.policy.deny
    assert [rule.pattern for rule in found.layers] == ["2"]
    assert {place.op for place in found.report.places} == {"linear"}


def test_a_measure_of_the_users_own() -> None:
    network = _overflowing(3, 1)
    measured: list[float] = []

    def accuracy(x: Tensor) -> float:
        return (
            float((network(x).argmax(-1) == 3).float().mean())
            if network(x).isfinite().all()
            else 0.5
        )

    def lost(exact: float, low: float) -> float:
        measured.append(low)
        return abs(exact - low)

    found = unamp.tune(accuracy, network, X, measure=lost, tolerance=0.05)
    assert len(measured) == found.report.runs - 4
    assert next(rule.pattern for rule in found.layers) == "2"
    with pytest.raises(
        TypeError, match="measure must return one number, the error of a run; it returned 'good'"
    ):
        unamp.tune(network, network, X, measure=lambda exact, low: "good")


def test_a_function_without_layers() -> None:
    found = unamp.tune(lambda x: torch.log(torch.exp(x + 12)), None, X, by="operation")
    assert "exp" in found.policy.deny
    with pytest.raises(ValueError, match='network is None, which goes with by="operation" alone'):
        unamp.tune(torch.exp, None, X)


def test_a_wrapped_network_and_a_shared_layer() -> None:
    network = _overflowing(3, 1)
    network.append(network[2])
    found = unamp.tune(nn.DataParallel(network), nn.DataParallel(network), X, tolerance=0.02)
    assert "2" in [rule.pattern for rule in found.layers]
    assert "6" not in [rule.pattern for rule in found.layers]
    with found.region(network.cpu()):  # where there is a GPU, its wrapper has put the network there
        assert network(X[0]).isfinite().all()


def test_a_budget_gives_the_best_so_far_and_a_file_goes_on_with_it(tmp_path: Path) -> None:
    network = _overflowing(8, 2, 6)
    run, runs = _counted(network)
    file = tmp_path / "search.json"
    whole = unamp.tune(run, network, X)
    runs.clear()
    short = unamp.tune(run, network, X, budget=20, resume=file)
    assert len(runs) == short.report.runs <= 20
    assert short.report.stopped == "the budget ended the search: this is the best so far"
    assert len(short.report.held) > len(whole.report.held)
    assert short.report.within
    longer = unamp.tune(run, network, X, resume=file)
    assert longer.to_toml() == whole.to_toml()
    assert longer.report.runs < whole.report.runs
    again = unamp.tune(run, network, X, resume=file)
    assert (again.to_toml(), again.report.tried) == (whole.to_toml(), longer.report.tried)
    with pytest.raises(
        ValueError, match="search.json: this is another search: its by is place, and now layer"
    ):
        unamp.tune(run, network, X, resume=file, by="layer")
    with torch.no_grad():
        network[-1].weight.mul_(2)
    with pytest.raises(ValueError, match="the weights or the batches have changed"):
        unamp.tune(run, network, X, resume=file)


def test_a_budget_that_is_too_small_says_what_it_takes() -> None:
    network = _overflowing(3, 1)
    with pytest.raises(
        ValueError, match="a budget of 5 runs ends before the search begins, which takes 12"
    ):
        unamp.tune(network, network, X, budget=5)
    with pytest.raises(ValueError, match="larger budget"):
        unamp.tune(network, network, X, budget="0.000001s")


def test_what_is_out_of_reach_is_an_error() -> None:
    network = _overflowing(1)

    def run(x: Tensor) -> Tensor:
        return network(x) * (2.0 if unamp.current_policy() else 1.0)

    with pytest.raises(
        ValueError,
        match="with every place in float32 the error is still 1, .* no policy is in reach",
    ):
        unamp.tune(run, network, X)

    def fussy(x: Tensor) -> Tensor:
        if unamp.current_policy():
            raise ArithmeticError("not today")
        return network(x)  # type: ignore[no-any-return]

    with pytest.raises(ValueError, match=r"the error is still inf.*\(run raised ArithmeticError\)"):
        unamp.tune(fussy, network, X)
    with pytest.raises(
        ValueError,
        match="the float32 run gives NaN, and log is the first whose result is not finite",
    ):
        unamp.tune(lambda x: torch.log(network(x) * 0 - 1), network, X)
    with pytest.raises(ValueError, match="nothing ran that .* would have low"):
        unamp.tune(lambda x: x.double() @ x.double().T, network, X)


def test_infinities_of_float32_stay_what_they_are() -> None:
    network = _overflowing(1)
    masked = torch.tensor([0.0, -torch.inf])

    def run(x: Tensor) -> Tensor:
        return network(x)[:, :2] + masked

    assert unamp.tune(run, network, X).report.within


def test_training_mode_is_named() -> None:
    network = nn.Sequential(nn.Linear(tuned.WIDTH, 4), nn.Dropout(0.5))
    with pytest.raises(ValueError, match=r"dropout is on in 1 \(Dropout\); call network.eval\(\)"):
        unamp.tune(network, network, X)
    network = nn.Sequential(nn.Linear(tuned.WIDTH, 4), nn.BatchNorm1d(4))
    amp_warnings._given.clear()
    with pytest.warns(
        AmpWarning, match=r"every run moves the running statistics of 1 \(BatchNorm1d\)"
    ):
        unamp.tune(network, network, X)


def test_results_that_are_written_over_are_an_error() -> None:
    network = _overflowing(1)
    result = torch.zeros(4, tuned.WIDTH)

    def run(x: Tensor) -> Tensor:
        return result.copy_(network(x))

    with torch.no_grad(), pytest.raises(ValueError, match="run returned the same tensor twice"):
        unamp.tune(run, network, X, measure=lambda exact, low: float((exact - low).norm()))
    with torch.no_grad():
        unamp.tune(run, network, X)  # without a measure, copies are kept


class _Other:
    pass


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"run": 3}, "run must be a function of one batch"),
        ({"network": _Other()}, "network must be a torch.nn.Module"),
        (
            {"batches": X[0]},
            "batches must be a list of batches, each for one call of run; not Tensor",
        ),
        ({"batches": []}, "batches is empty"),
        ({"dtype": "float8"}, "dtype 'float8' is not a low precision"),
        ({"base": "O1"}, "policy must be an unamp.Policy"),
        ({"base": Policy("O0")}, "base must be a policy under which something is low"),
        ({"base": Policy(preset="native")}, "base must be a policy with lists; preset 'native'"),
        (
            {"base": Policy("O3", "bfloat16"), "dtype": "fp16"},
            "dtype is 'fp16' and base computes in bfloat16; leave dtype out",
        ),
        ({"tolerance": 0}, "tolerance must be above 0, not 0"),
        ({"tolerance": float("nan")}, "tolerance must be above 0, not nan"),
        ({"tolerance": "small"}, "tolerance must be a number, not 'small'"),
        ({"margin": 1.5}, "margin must be above 0 and at most 1, not 1.5"),
        ({"by": "layers"}, "unknown by 'layers'; did you mean 'layer'"),
        ({"effort": "best"}, "unknown effort 'best'; valid: halves, ranked"),
        ({"budget": "soon"}, "budget 'soon' is none"),
        ({"progress": 3}, "progress must be a function of a Step"),
        (
            {"run": lambda x: _Other()},
            "run gave a _Other, which has no error of itself; .* or give measure=",
        ),
    ],
)
def test_bad_arguments(given: dict[str, Any], says: str) -> None:
    network = _overflowing(1)
    with pytest.raises((TypeError, ValueError), match=says):
        unamp.tune(**{"run": network, "network": network, "batches": X, **given})
    assert unamp.current_policy() is None


def test_the_page_has_every_layer_and_every_trial() -> None:
    network = _overflowing(3, 1)
    found = unamp.tune(network, network, X)
    page = found.to_html(title="<b>a title</b>")
    assert "<b>a title" not in page
    assert "&lt;b&gt;a title" in page
    assert page.count("<circle") == len(found.report.tried)
    assert page.count('<th scope="row">') == 6
    assert page.count(": float32</li>") == 2
    assert not any(word in page for word in ("<script", "http:", "https:", "url(", "<link", "<img"))


def test_the_report_is_plain_data() -> None:
    network = _overflowing(3, 1)
    found = unamp.tune(network, network, X[:1])
    data = json.loads(json.dumps(found.to_data(), allow_nan=False))
    assert data["report"]["all_low"] is None
    assert data["report"]["held_out"] is None
    assert "no batch was held out" in found.table()
    assert Policy.from_data(data["policy"]) == found.policy
    assert unamp.LayerRules.from_data(data["layers"]) == found.layers
