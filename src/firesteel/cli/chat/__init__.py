"""The verb `chat`: a conversation on the terminal."""
