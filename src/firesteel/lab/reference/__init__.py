"""Expected texts and log-probabilities."""
