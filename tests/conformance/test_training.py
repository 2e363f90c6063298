"""The check of training finds each defect of a training, and passes a right one."""

import numpy as np
import pytest
from unamp_conformance.check import training
from unamp_conformance.check.networks import NETWORKS
from unamp_conformance.check.training import State, check_training, train
from unamp_conformance.subjects import Subject

from unamp.policy import Policy
from unamp.scaling.loss_scale import LossScale

SUBJECT, MLP, POLICY = Subject("torch", "cpu"), NETWORKS["mlp"], Policy("O1", "float16")


def test_a_checkpoint_holds_everything():
    network = NETWORKS["residual"]
    state = State.of(network)
    train(SUBJECT, network, POLICY, state, 3, overflow_at=2)
    again = State.restored(*state.saved())
    assert (again.scale, again.step) == (state.scale, 3)
    assert again.scale.scale == 512.0
    for kept, known in ((again.weights, state.weights), (again.buffers, state.buffers)):
        assert kept.keys() == known.keys()
        assert all(np.array_equal(kept[name], known[name]) for name in known)


def test_right_training_passes():
    message, details = check_training(SUBJECT, MLP, POLICY, 12)
    assert message == ""
    assert details["error"] < 0.01


def test_an_overflow_that_is_not_skipped_is_found(monkeypatch):
    monkeypatch.setattr(training.np, "isfinite", lambda values: np.ones(np.shape(values), bool))
    message, _ = check_training(SUBJECT, MLP, POLICY, 6)
    assert "skipped [], should be 2 alone" in message
    assert "the scale should have been halved once" in message


def test_a_scale_that_does_not_drop_is_found(monkeypatch):
    monkeypatch.setattr(training.State, "__init__", _with_a_fixed_scale(training.State.__init__))
    assert "the scale should have been halved once" in check_training(SUBJECT, MLP, POLICY, 6)[0]


def _with_a_fixed_scale(original):
    class Fixed(LossScale):
        __slots__ = ()

        def after(self, overflow):
            return self

    def made(self, weights, buffers, scale=None, step=0):
        original(self, weights, buffers, scale or Fixed(2.0**10), step)

    return made


@pytest.mark.parametrize("lost", ["weights", "buffers"])
def test_a_checkpoint_that_is_not_whole_is_found(monkeypatch, lost):
    def saved(self):
        network = NETWORKS["residual"]
        fresh = State(
            *(
                getattr(State.of(network) if name == lost else self, name)
                for name in ("weights", "buffers")
            )
        )
        fresh.scale, fresh.step = self.scale, self.step
        return whole(fresh)

    whole = State.saved
    monkeypatch.setattr(State, "saved", saved)
    message = check_training(SUBJECT, NETWORKS["residual"], POLICY, 6)[0]
    assert "differs after a resumed run" in message
    assert "skipped" not in message


def test_steps_of_another_size_are_found(monkeypatch):
    training._plain(SUBJECT, "mlp", 12)  # the float32 training is cached from here on
    monkeypatch.setattr(training, "RATE", 0.9 * training.RATE)
    assert "off the one of float32 training" in check_training(SUBJECT, MLP, POLICY, 12)[0]
