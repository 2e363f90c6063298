"""A probe of a region's effect: a PyTorch that stops calling a kernel would silently lose rules."""

from __future__ import annotations

import torch

from unamp.errors import FrameworkNotSupported
from unamp.policy import Policy
from unamp_torch import plans
from unamp_torch.activation import activation
from unamp_torch.compiling import is_recorded
from unamp_torch.state import CPU
from unamp_torch.stepping import probe_steps

#: A usual policy, so that no operator gets a kernel that other policies can do without.
_POLICY = Policy("O1", "bfloat16")


def probe_effects() -> None:
    """Compute a product and a softmax in a region, and probe optimizers' steps.

    Where something records the thread's operations, nothing is computed.

    Raises:
        FrameworkNotSupported: naming the version of PyTorch, and the operation that does not follow
            its rule, or the name that PyTorch lacks.
    """
    probe_steps()
    if is_recorded():
        return
    region = activation(plans.plan(_POLICY, CPU))
    with torch.no_grad():
        ones = torch.ones(1, 1, device=CPU)
        token = region.enter()
        try:
            low = ones @ ones
            wide = low.softmax(0)
        finally:
            region.exit(token)
    for operation, how, found, expected in (
        ("torch.matmul", "native autocast", low.dtype, torch.bfloat16),
        ("torch.softmax", "unamp's kernel", wide.dtype, torch.float32),
    ):
        if found is not expected:
            raise FrameworkNotSupported(
                f"torch {torch.__version__} does not ask {how} for {operation} in a region: it "
                f"gave {found} where the rule is {expected}; use an older torch, or a newer unamp"
            )
