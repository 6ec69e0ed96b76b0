"""Operands of ops: weights, activations and rows stored for a matmul."""
