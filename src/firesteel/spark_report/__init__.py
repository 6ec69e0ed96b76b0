"""One file with every check of a machine: the parts, their execution under a guard, and the packing."""
