"""The OpenAI API over HTTP: requests in, answers out, whole or streamed. Knows the engine by its client only."""
