"""Loss scaling: `GradScaler`, torch.amp's for every framework, is in `grad_scaler`; the scale and its rules in `loss_scale`."""

from unamp.scaling.grad_scaler import GradScaler, NothingChecked, is_unscaled, no_policy

__all__ = ["GradScaler", "NothingChecked", "is_unscaled", "no_policy"]
