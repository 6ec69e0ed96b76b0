"""Types of the OpenAI API: requests and answers that several endpoints share."""
