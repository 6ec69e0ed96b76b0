"""Number formats of 4 to 8 bits: the meaning of their bits, in plain torch."""
