"""Kernel libraries of other projects as implementations beside ours; imported only when they are asked for."""
