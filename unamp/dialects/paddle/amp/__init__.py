"""`paddle.amp` for every framework.

Differences from Paddle's own:

- It takes effect on the CPU too.
- Bad arguments of a region, and unknown operations among them, raise where it is made, not where it
  is opened.
- A scaler also scales in bfloat16, where Paddle's switches itself off.
- `debugging` counts and checks the operations of unamp's vocabulary, in the forward pass. Its
  counts are data, too, its files are traces, and `check_numerics` takes Paddle's tensors alone.

Semantics: https://www.paddlepaddle.org.cn/documentation/docs/en/api/paddle/amp/Overview_en.html
(PaddlePaddle 3.3)
"""

from unamp.dialects.paddle.amp import debugging
from unamp.dialects.paddle.amp._decorate import amp_decorate, decorate
from unamp.dialects.paddle.amp._lists import black_list, white_list
from unamp.dialects.paddle.amp._regions import (
    amp_guard,
    auto_cast,
    autocast,
    get_autocast_cpu_dtype,
    get_autocast_dtype,
    get_autocast_gpu_dtype,
    is_autocast_enabled,
)
from unamp.dialects.paddle.amp._scaler import AmpScaler, GradScaler
from unamp.dialects.paddle.amp._support import is_bfloat16_supported, is_float16_supported

__all__ = [
    "AmpScaler",
    "GradScaler",
    "amp_decorate",
    "amp_guard",
    "auto_cast",
    "autocast",
    "black_list",
    "debugging",
    "decorate",
    "get_autocast_cpu_dtype",
    "get_autocast_dtype",
    "get_autocast_gpu_dtype",
    "is_autocast_enabled",
    "is_bfloat16_supported",
    "is_float16_supported",
    "white_list",
]
