"""What a step must cost, and what the machine at hand reaches."""
