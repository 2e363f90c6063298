"""unamp on TensorFlow, beside casts by hand, Keras's mixed precision and grappler's rewriter."""
