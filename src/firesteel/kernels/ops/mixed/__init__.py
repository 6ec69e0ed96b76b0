"""Attention of steps with prompts beside decoding requests: `attention=triton:mixed`."""
