"""GPU time by category."""
