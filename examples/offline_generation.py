"""Generates text in this process: a batch of prompts, a stream, and a chat turn that follows a JSON schema."""

import argparse

from firesteel import LLM, SamplingParams
from firesteel.chat.harmony import Message, ResponseFormat

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["London", "Madrid", "Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="", help="checkpoint folder or name (default: the built-in model)")
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    options = parser.parse_args()
    llm = LLM(options.model, device=options.device)

    # All prompts run together as one batch. Temperature 0 always takes the most likely token.
    params = SamplingParams(max_tokens=12, temperature=0)
    prompts = ["The capital of France is", "Two and two are"]
    for prompt, completion in zip(prompts, llm.generate(prompts, params), strict=True):
        print(f"{prompt!r} -> {completion.text!r} ({completion.finish_reason})")

    # The same continuation, piece by piece as it is generated.
    print("stream:", end="")
    for piece in llm.stream(prompts[0], params):
        print(piece, end="", flush=True)
    print()

    # A chat turn. The grammar of the schema leaves the reasoning free and constrains the answer.
    answer = llm.chat(
        [Message(role="user", content="What is the capital of France?")],
        SamplingParams(max_tokens=200, temperature=0),
        response_format=ResponseFormat(name="city", schema=CITY, strict=True),
    )
    print("reasoning:", answer.message.reasoning)
    print("answer:", answer.message.content)


if __name__ == "__main__":
    main()
