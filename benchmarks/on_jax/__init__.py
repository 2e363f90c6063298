"""unamp on JAX, beside casts by hand, and jmp, which casts whole functions."""
