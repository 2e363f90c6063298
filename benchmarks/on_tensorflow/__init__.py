"""unamp on PaddlePaddle, beside Paddle without it: on a CPU Paddle's own AMP does nothing, so float32 is what there is."""
