"""The OpenAI API over HTTP: reads requests, renders prompts, streams answers. Knows the engine by its client only."""
