"""Text and tokens: the tokenizer, the Harmony format and tools. Knows no engine and no tensors."""
