"""Networks that are replicated or sharded among processes; here in a group of one process."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import distributed, nn
from torch.distributed.distributed_c10d import get_default_backend_for_device
from torch.distributed.tensor import DTensor

from unamp._function_types import Function
from unamp.adapter import OpenRegion, Way
from unamp.adapter.plain_ways import inside
from unamp_torch.conformance.ways.opening import Weighed
from unamp_torch.devices import accelerator


@contextmanager
def _group(device: str) -> Iterator[None]:
    """Open a group of this process alone, for tensors on a type of device."""
    with tempfile.TemporaryDirectory() as folder:
        meeting, backend = Path(folder) / "meeting", get_default_backend_for_device(device)
        distributed.init_process_group(
            backend, init_method=f"file://{meeting}", rank=0, world_size=1
        )
        try:
            yield
        finally:
            distributed.destroy_process_group()


def _replicate(network: nn.Module, device: str) -> nn.Module:
    return nn.parallel.DistributedDataParallel(network)


def _shard(network: nn.Module, device: str) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    fully_shard(network, mesh=init_device_mesh(device, (1,)))  # in place
    return network


def _trained(place: Callable[[nn.Module, str], nn.Module], *, around: bool) -> Any:
    def run(
        function: Function, region: OpenRegion, inputs: Sequence[Any], places: Sequence[int]
    ) -> tuple[Any, Sequence[Any]]:
        # The parameters of a network must have one dtype here: tensors in another are inputs.
        weights = [each for each in places if inputs[each].dtype is inputs[places[-1]].dtype]
        leaves = {
            each: inputs[each].detach().requires_grad_() for each in places if each not in weights
        }
        given = [leaves.get(each, tensor) for each, tensor in enumerate(inputs)]
        device = inputs[0].device.type
        called = function if around else inside(function, region)
        with _group(device):
            network = place(Weighed(called, inputs, weights), device)
            with region() if around else nullcontext():
                value = network(*given)
            value.backward()
            named = {name.rpartition(".")[2]: p.grad for name, p in network.named_parameters()}
            whole = {
                name: g.full_tensor() if isinstance(g, DTensor) else g for name, g in named.items()
            }
            found = {each: whole[f"p{each}"] for each in weights} | {
                each: leaf.grad for each, leaf in leaves.items()
            }
            return value.detach(), [found[each] for each in places]

    return run


def ways() -> Iterator[Way]:
    """Yield the ways of data parallelism."""
    known = distributed.Backend.default_device_backend_map
    needed = {
        known.get(device, f"a backend for {device}") for device in ("cpu", accelerator()) if device
    }
    missing = ", ".join(
        sorted(name for name in needed if not distributed.is_backend_available(name))
    )
    absent = f"PyTorch was built without {missing}" if missing else ""
    for name, place in {"DistributedDataParallel": _replicate, "fully_shard": _shard}.items():
        for around in (True, False):
            where = "around" if around else "inside"
            run = _trained(place, around=around)
            yield Way(f"{name}, region {where}", "replicated", value_and_grad=run, absent=absent)
