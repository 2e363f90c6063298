"""Networks that are replicated or sharded among processes; here in a group of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import distributed, nn

from unamp.adapter import OpenRegion, Way
from unamp_torch.conformance.ways.opening import Function

__all__ = ["ways"]


class _Weighed(nn.Module):
    """A network with a function's floating arguments as parameters, and the others as its inputs."""

    def __init__(self, function: Function, inputs: Sequence[Any]) -> None:
        super().__init__()
        self.function = function
        for place, tensor in enumerate(inputs):
            if tensor.is_floating_point():
                self.register_parameter(f"p{place}", nn.Parameter(tensor.detach().clone()))

    def forward(self, *inputs: Any) -> Any:
        named = dict(self.named_parameters())
        return self.function(*(named.get(f"p{place}", tensor) for place, tensor in enumerate(inputs)))


@contextmanager
def _group() -> Iterator[None]:
    """Open a group of this process alone."""
    with tempfile.TemporaryDirectory() as folder:
        meeting = Path(folder) / "meeting"
        distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=0, world_size=1)
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _replicate(network: nn.Module) -> nn.Module:
    return nn.parallel.DistributedDataParallel(network)


def _shard(network: nn.Module) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    sharded: nn.Module = fully_shard(network, mesh=init_device_mesh("cpu", (1,)))
    return sharded


def _trained(place: Callable[[nn.Module], nn.Module], *, around: bool) -> Any:
    def run(function: Function, region: OpenRegion, inputs: Sequence[Any]) -> tuple[Any, list[Any]]:
        def body(*given: Any) -> Any:
            with region():
                return function(*given)

        with _group():
            network = place(_Weighed(function if around else body, inputs))
            if around:
                with region():
                    value = network(*inputs)
            else:
                value = network(*inputs)
            value.backward()
            named = {name.rpartition(".")[2]: p.grad for name, p in network.named_parameters()}
            whole = {name: g.full_tensor() if hasattr(g, "full_tensor") else g for name, g in named.items()}
            return value.detach(), [whole.get(f"p{place}") for place in range(len(inputs))]

    return run


def ways() -> Iterator[Way]:
    """Yield the ways of data parallelism."""
    absent = "" if distributed.is_available() and distributed.is_gloo_available() else "PyTorch was built without gloo"
    for name, place in {"DistributedDataParallel": _replicate, "fully_shard": _shard}.items():
        for around in (True, False):
            where = "around" if around else "inside"
            run = _trained(place, around=around)
            yield Way(f"{name}, region {where}", "replicated", value_and_grad=run, absent=absent)
