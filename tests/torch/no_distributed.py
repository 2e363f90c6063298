"""Train under a policy where PyTorch is as if it were built without `torch.distributed`.

Such a build has no functions for it in C++. The last line that is printed is the version of PyTorch
that a probe of all private names has passed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType

#: What they begin with in `torch._C`.
_COMPILED = ("_c10d", "_dist_autograd", "_rpc")


class _Without(MetaPathFinder):
    """Removes the functions before anything imports `torch.distributed`."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> None:
        if fullname == "torch.distributed":
            compiled = vars(sys.modules["torch._C"])
            for name in [name for name in compiled if name.startswith(_COMPILED)]:
                del compiled[name]


sys.meta_path.insert(0, _Without())

import torch  # noqa: E402

import unamp  # noqa: E402

assert not torch.distributed.is_available()

for level in ("O1", "O2"):
    network: torch.nn.Module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    # it imports what it can of `torch.distributed.fsdp`
    optimizer: torch.optim.Optimizer = torch.optim.SGD(network.parameters(), 0.1)
    if level == "O2":
        network, optimizer = unamp.decorate(network, optimizer, level=level, dtype="bfloat16")
    scaler = unamp.GradScaler()
    with unamp.autocast(level=level, dtype="bfloat16"):
        loss = network(torch.randn(3, 4)).square().sum()
    scaler.scale(loss).backward()
    assert scaler.step(optimizer)
    scaler.update()

from unamp_torch.hooks import HOOKS  # noqa: E402

torch.__version__ = torch.torch_version.TorchVersion("2.99.0")  # every name is looked for
HOOKS.probe()
print(torch.__version__)
