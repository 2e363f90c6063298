"""`BaseAdapter`: the answers that most adapters share.

An adapter derives from it, and defines what differs. The rest of the contract is in functions of
the adapter's other modules, which the body of its class names one by one::

    class ToyAdapter(BaseAdapter):
        framework = "toy"
        scale_loss = staticmethod(scaling.scale_loss)  # a function of the contract's name
        gradients = scaling.ToyGradients               # a class: it is called
        wrap = networks.wrap                           # a function that takes the adapter first

A type checker compares them with `Adapter` where an adapter is passed as one, and the registry does
so when the adapter is registered.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Container, Iterator, Mapping

from unamp.adapter.contract import DEVICES, CapturesNothing, Gap, Support
from unamp.adapter.facts import read_gaps
from unamp.adapter.framework_types import Tensor
from unamp.adapter.registered import PlanDecides
from unamp.dtypes import PRECISIONS
from unamp.policy import Policy


class BaseAdapter(CapturesNothing, PlanDecides):
    """The answers that most adapters share.

    The answers about compilers and registered operations are in its bases.

    Args:
        requires: the versions of the framework that the adapter works with.

    Attributes:
        dtypes: the names of the dtypes that the adapter computes in; every known one, unless the
            adapter names fewer.
    """

    framework: str
    device_names: Callable[[], Mapping[str, str]]  # see `unamp.adapter.contract.NamesDevices`
    dtypes: Container[str] = PRECISIONS

    def __init__(self, requires: str) -> None:
        self.requires = requires

    def version(self) -> str:
        """Return the framework's version, with its build."""
        return str(sys.modules[self.framework].__version__)

    def devices(self) -> tuple[str, ...]:
        """Return the kinds of device, of `DEVICES`, that the framework has a word for here."""
        present = self.device_names()
        return tuple(kind for kind in DEVICES if kind in present)

    def support(self, device: str, dtype: str) -> Support:
        """Return the support that `kernels` knows for a dtype of the adapter; others have none."""
        return self.kernels(device, dtype) if dtype in self.dtypes else Support.UNSUPPORTED

    def kernels(self, device: str, dtype: str) -> Support:
        """Return native support on every device here; operations without a kernel are emulated."""
        return Support.NATIVE if device in self.devices() else Support.UNSUPPORTED

    def slowdown(self, device: str, dtype: str) -> float:
        """Return 1: no low dtype is known to be slower than float32."""
        return 1.0

    def gaps(self) -> tuple[Gap, ...]:
        """Return the gaps that ``gaps.toml`` in the adapter's package declares."""
        return read_gaps(type(self).__module__.partition(".")[0])

    def native_policy(self, device: str) -> Policy | None:
        """Return None: the framework has no AMP of its own that is in force in a thread."""
        return None

    def made_by(self, tensor: Tensor) -> Iterator[str]:
        """Return no operations: those that a tensor came from are not known."""
        return iter(())
