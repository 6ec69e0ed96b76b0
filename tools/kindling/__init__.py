"""How the shipped model Kindling is made: its text, its tokenizer, its exam."""
