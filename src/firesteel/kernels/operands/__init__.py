"""What ops take: weights, activations and rows stored for a matmul."""
