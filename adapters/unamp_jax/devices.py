"""JAX's words and objects for devices.

They are ``"cpu"``, ``"gpu"``, ``"tpu"`` and `jax.Device`, with an index or without.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax

#: JAX's platforms, with the kinds of devices that they are.
_KINDS = {"cpu": "cpu", "gpu": "gpu", "cuda": "gpu", "rocm": "gpu", "tpu": "gpu"}


def names() -> Mapping[str, str]:
    """Return JAX's word for every device that is there, by its kind.

    The CPU is always there, beside the device that JAX computes on.
    """
    backend = jax.default_backend()
    return {"cpu": "cpu", **({} if _KINDS.get(backend, "gpu") == "cpu" else {"gpu": backend})}


def kind_of(device: object) -> str | None:
    """Return the kind of a device, ``"gpu:0"`` or a `jax.Device`; None where it is not JAX's.

    A device that is not there is a kind of its own.
    """
    if isinstance(device, jax.Device):
        return _KINDS.get(device.platform, "gpu")
    word, _, index = device.partition(":") if isinstance(device, str) else ("", "", "")
    if word not in _KINDS or not (index.isdigit() or word == device):
        return None
    kind, present = _KINDS[word], names()
    return word if kind not in present or "tpu" in {word, present[kind]} != {word} else kind


def on(tensor: jax.Array) -> str:
    """Return the kind of device that an array is on."""
    try:
        platform = next(iter(tensor.devices())).platform
    except jax.errors.ConcretizationTypeError:  # a tracer is nowhere yet
        platform = jax.default_backend()
    return _KINDS.get(platform, "gpu")
