"""unamp on PaddlePaddle, beside float32: on a CPU Paddle's own AMP does nothing."""
