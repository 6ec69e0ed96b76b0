"""Numbers as bits: what each small format means, in plain torch. Knows no kernels, models or files."""
