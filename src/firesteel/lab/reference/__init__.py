"""References for correct answers, and the texts they are compared on."""
