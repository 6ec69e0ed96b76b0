"""Makes the shipped model Kindling: its text, tokenizer, training and exam."""
