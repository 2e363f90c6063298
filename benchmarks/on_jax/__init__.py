"""unamp on JAX, beside JAX without it: casts by hand, and jmp, which casts whole functions."""
