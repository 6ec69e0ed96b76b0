"""The fused ops of a decoding step of up to eight tokens."""
