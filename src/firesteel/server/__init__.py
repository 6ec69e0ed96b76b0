"""The OpenAI API over HTTP, with whole and streamed answers, in front of an engine client."""
