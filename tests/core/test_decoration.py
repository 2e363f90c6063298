"""`unamp.decorate` checks its arguments and gives the adapter networks and optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from elsewhere import python

import unamp
from unamp.adapter import Decoration


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_the_adapter_gets_lists_and_the_caller_what_was_given(
    level: str, fake: Any, optimizer: Any
) -> None:
    network, other, first, second = (
        fake.make_network(),
        fake.make_network(),
        optimizer(),
        optimizer(),
    )
    assert unamp.decorate(network, level=level) is network
    assert unamp.decorate(network, first, level) == (network, first)
    given = ([network, other], (first, second))
    models, optimizers = unamp.decorate(*given, level=level)
    assert models is given[0]
    assert optimizers is given[1]
    plain = Decoration("float16")
    assert fake.decorated == [
        ([network], [], plain),
        ([network], [first], plain),
        ([network, other], [first, second], plain),
    ]


@pytest.mark.parametrize("level", ["O2", "O3"])
def test_in_float32_everything_is_left_as_it_is(level: str, fake: Any, optimizer: Any) -> None:
    network, own = fake.make_network(), optimizer()
    assert unamp.decorate(network, own, level=level, dtype="float32") == (network, own)
    assert fake.decorated == []


@pytest.mark.parametrize("level", ["O0", "OD", "O1"])
def test_other_levels_change_nothing(level: str, fake: Any, optimizer: Any) -> None:
    network, own = fake.make_network(), optimizer()
    assert unamp.decorate(network, own, level=level, dtype="bfloat16") == (network, own)
    assert unamp.decorate(network, own) == (network, own)
    assert fake.decorated == []


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"dtype": "bf16"}, Decoration("bfloat16")),
        ({"dtype": ml_dtypes.bfloat16}, Decoration("bfloat16")),
        ({"master_weight": True}, Decoration("float16")),
        ({"master_weight": False}, Decoration("float16", master_weights=False)),
        ({"master_grad": True}, Decoration("float16", master_grad=True)),
        ({"save_dtype": np.float32}, Decoration("float16", save_dtype="float32")),
        ({"save_dtype": "float64"}, Decoration("float16", save_dtype="float64")),
        ({"excluded_layers": int}, Decoration("float16", excluded=(int,))),
        ({"excluded_layers": [int, str]}, Decoration("float16", excluded=(int, str))),
    ],
)
def test_what_the_arguments_mean(
    arguments: dict[str, Any], expected: Decoration, fake: Any
) -> None:
    unamp.decorate(fake.make_network(), level="O2", **arguments)
    assert fake.decorated[0][2] == expected


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"level": "O4"}, ValueError, "unknown level 'O4'; valid: O0, OD, O1, O2, O3"),
        (
            {"dtype": "float64"},
            ValueError,
            "'float64' is no dtype of a policy; valid: 'float16', 'bfloat16', 'float32'",
        ),
        ({"dtype": None}, TypeError, "dtype must be a string or a dtype object"),
        (
            {"save_dtype": "int8"},
            ValueError,
            "save_dtype must be one of float16, bfloat16, float32, float64, or None",
        ),
        (
            {"master_grad": True, "master_weight": False},
            ValueError,
            "master_grad goes with master weights",
        ),
        ({"models": []}, TypeError, "there is no model to decorate"),
        ({"models": "net"}, TypeError, "str is no network"),
        ({"optimizers": object()}, TypeError, "object is no optimizer"),
    ],
)
def test_bad_arguments(
    arguments: dict[str, Any], error: type[Exception], said: str, fake: Any
) -> None:
    with pytest.raises(error, match=said):
        unamp.decorate(**{"models": fake.make_network(), "level": "O2"} | arguments)
    assert fake.decorated == []


def test_one_framework_at_a_time(
    make_adapter: Callable[..., Any], fake: Any, optimizer: Any
) -> None:
    class Other:
        pass

    make_adapter("other", optimizer=Other, is_network=lambda value: False)
    with pytest.raises(
        TypeError, match="one call decorates what is of one framework, not of fake and other"
    ):
        unamp.decorate(fake.make_network(), [optimizer(), Other()], level="O2")
    assert fake.decorated == []


def test_who_only_opens_regions_does_not_load_it() -> None:
    asked = (
        "import sys, unamp; before = 'unamp.decoration' in sys.modules; "
        "unamp.decorate; print(before, 'unamp.decoration' in sys.modules)"
    )
    assert python("-c", asked).split() == ["False", "True"]
