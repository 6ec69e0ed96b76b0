"""Conversion between text and tokens: the tokenizer, the Harmony chat format, tools and grammars."""
