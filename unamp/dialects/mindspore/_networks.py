"""Networks under MindSpore's lists: `auto_mixed_precision`, `custom_mixed_precision` and the lists.

As MindSpore's own, they convert the given network; the one that they return has its parameters.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import unamp
from unamp._data import load_table
from unamp._function_types import Function
from unamp.adapter.framework_types import Layer
from unamp.adapter.registry import owner
from unamp.dialects._in_use import framework_in_use
from unamp.dtypes import LOW_DTYPES, dtype_name
from unamp.layers.applying import convert_network
from unamp.policy import Policy
from unamp.presets import preset
from unamp.typing import DtypeLike


def auto_mixed_precision(
    network: Any,
    amp_level: Literal["O0", "O1", "O2", "O3", "auto"] = "O0",
    dtype: DtypeLike = "float16",
) -> Any:
    """Convert a network to MindSpore's lists and return one whose results are float32.

    See `unamp.auto_mixed_precision`. As in MindSpore, the given network itself computes under the
    lists from now on, wherever it is called. At O2 and O3 its own results are low then; only those
    of the returned network are float32.

    Args:
        network: a network of a framework that is imported; at the level ``"auto"`` a function, too.
        amp_level: ``"O0"``, ``"O1"``, ``"O2"``, ``"O3"``, or ``"auto"``: MindSpore's lists of
            operators, whose results stay as they come.
        dtype: ``"float16"`` or ``"bfloat16"``, or a framework's own.

    Returns:
        At O1, O2 and O3 a second network with the same parameters; at O0 and ``"auto"`` the network
        itself; for a function, a second function. JAX's modules are values: there the returned
        network alone is converted.

    Raises:
        TypeError: where ``network`` is no network.
        ValueError: for another level or dtype.
        NotExpressible: for a network that cannot be converted in place (generated code, a forward
            put on the instance).
    """
    if amp_level == "auto":
        return _auto(network, dtype)
    _check_network(network, f"For amp_level {amp_level!r}, the network type should be Cell")
    if amp_level not in ("O0", "O1", "O2", "O3"):
        raise ValueError(f"The amp level {amp_level} is not supported; valid: O0, O1, O2, O3, auto")
    policy = Policy(
        amp_level, low_dtype_of(dtype), preset="mindspore", widen_results=amp_level == "O1"
    )
    return _converted(network, policy) if policy.active else network


def _converted(network: Layer, policy: Policy) -> Layer:
    """Have a network compute under a policy, and return a second one, which returns float32."""
    adapter = owner(network, "network")
    assert adapter is not None
    convert_network(network, policy)
    return adapter.wrap(network, policy)


def _auto(network: Layer | Function, dtype: object) -> Layer | Function:
    adapter = owner(network, "network")
    if adapter is None and not (inspect.isfunction(network) or inspect.ismethod(network)):
        raise TypeError(
            "For amp_level 'auto', the network type should be Cell, or another framework's "
            f"network, or function; not {type(network).__name__}."
        )
    lists = load_table("presets/mindspore.toml")
    # What MindSpore promotes (`promote_auto`) takes the widest dtype here, like all unlisted.
    policy = Policy("O1", low_dtype_of(dtype), lists["allow_auto"], lists["deny_auto"], "none")
    if adapter is None:
        return unamp.policy_region(policy)(network)
    return network if convert_network(network, policy) else adapter.wrap(network, policy)


def custom_mixed_precision(
    network: Any,
    *,
    white_list: list[Any] | None = None,
    black_list: list[Any] | None = None,
    dtype: object = "float16",
) -> Any:
    """Convert a network to a list of your own and return one whose results are float32.

    It converts as `auto_mixed_precision` does.

    Args:
        network: a network of a framework that is imported.
        white_list: the operations that run low; their results are cast back to float32 at once.
            Operations that are on MindSpore's own list and not on this one run in float32.
        black_list: the operations that run in float32; everything else runs low.
        dtype: ``"float16"`` or ``"bfloat16"``, or a framework's own.

    Entries are classes of layers and primitives of any framework, and names. One of the two lists
    must be given.

    Raises:
        TypeError: where ``network`` is no network, or ``white_list`` or ``black_list`` no list.
        ValueError: for another dtype, an unknown entry, and with no list or two.
    """
    _check_network(network, "The network type should be Cell")
    if (white_list is None) is (black_list is None):
        raise ValueError(
            "For custom_mixed_precision, one of white_list and black_list must be provided, "
            "and not both."
        )
    low = low_dtype_of(dtype)
    if white_list is not None:
        policy = _policy("O1", low, white_list, "white_list")
    else:
        policy = _policy("O2", low, black_list, "black_list")
    return _converted(network, policy)


def get_white_list() -> list[Any]:
    """Return a copy of MindSpore's white list.

    It holds classes where MindSpore is imported, else their names.
    """
    return _classes("AMP_WHITE_LIST")


def get_black_list() -> list[Any]:
    """Return a copy of MindSpore's black list.

    It holds classes where MindSpore is imported, else their names.
    """
    return _classes("AMP_BLACK_LIST")


def low_dtype_of(dtype: object) -> str:
    """Return the name of a low dtype.

    Raises:
        ValueError: for anything else.
    """
    name = dtype_name(dtype)
    if name not in LOW_DTYPES:
        raise ValueError(f"The dtype should be one of (float16, bfloat16), but got {dtype}.")
    return name


def _policy(level: str, dtype: str, entries: object, name: str) -> Policy:
    """Return the policy with a list in place of MindSpore's."""
    if not isinstance(entries, list):
        raise TypeError(f"The type of {name} should be list, but got {type(entries)}")
    usual = preset("mindspore")
    if level == "O1":
        allow = Policy(allow=entries).allow
        return Policy("O1", dtype, allow, usual.allow - set(allow), "mindspore", widen_results=True)
    deny = Policy(deny=entries).deny
    return Policy("O2", dtype, usual.denied("O2", dtype) - set(deny), deny, "mindspore")


def _classes(name: str) -> list[type | str]:
    names = load_table("dialects/mindspore.toml")[name]
    mindspore = framework_in_use("mindspore")
    if mindspore is None:
        return [f"mindspore.{each}" for each in names]
    return [
        getattr(getattr(mindspore, part), leaf)
        for part, leaf in (each.split(".") for each in names)
    ]


def _check_network(network: object, message: str) -> None:
    if owner(network, "network") is None:
        raise TypeError(f"{message}, or another framework's network; not {type(network).__name__}.")
