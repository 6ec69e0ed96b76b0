"""Streams one answer from an OpenAI-compatible server, with the `openai` package (pip install openai).

Start a server first: firesteel serve
"""

import argparse
import sys

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("question", nargs="?", default="What is the capital of France?")
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--api-key", default="none", help="needed only if the server asks for one")
    options = parser.parse_args()
    with OpenAI(base_url=f"{options.url}/v1", api_key=options.api_key) as client:
        model = client.models.list().data[0].id
        chunks = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": options.question}],
            stream=True,
            stream_options={"include_usage": True},
            temperature=0,
        )
        for chunk in chunks:
            if chunk.usage is not None:  # the last chunk has no choices, only the usage
                print(f"\n{chunk.usage.completion_tokens} tokens from {model}", file=sys.stderr)
            for choice in chunk.choices:
                # Reasoning is not part of OpenAI's type: servers add the field.
                print(getattr(choice.delta, "reasoning_content", None) or "", end="", file=sys.stderr)
                print(choice.delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
