"""Loss scaling: `grad_scaler` has `GradScaler`, `loss_scale` the scale and its rules.

`GradScaler` has the interface of torch.amp's, for every framework.
"""

from unamp.scaling.grad_scaler import GradScaler, NothingChecked, is_unscaled, no_policy

__all__ = ["GradScaler", "NothingChecked", "is_unscaled", "no_policy"]
