"""Lets a model call functions until it answers, with the `openai` package (pip install openai).

Start a server first: firesteel serve
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

from openai import OpenAI

MOST_TURNS = 5


def check_file(private: bool, city: str = "") -> dict[str, Any]:
    """The function that the model may call. A real one would look something up."""
    return {"file": 6910 if private else 12, "city": city}


FUNCTIONS: dict[str, Callable[..., dict[str, Any]]] = {"check_file": check_file}
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "check_file",
            "description": "Check the file.",
            "parameters": {
                "type": "object",
                "properties": {"private": {"type": "boolean"}, "city": {"type": "string"}},
                "required": ["private"],
            },
        },
    }
]


def call_function(name: str, arguments: str) -> str:
    """Returns the result as JSON; an error becomes a result too, so that the model can react to it."""
    try:
        return json.dumps(FUNCTIONS[name](**json.loads(arguments)))
    except (KeyError, TypeError, ValueError) as error:
        return json.dumps({"error": repr(error)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--api-key", default="none", help="needed only if the server asks for one")
    options = parser.parse_args()
    messages: list[Any] = [{"role": "user", "content": "Please check the file with private true and city Baghdad."}]
    with OpenAI(base_url=f"{options.url}/v1", api_key=options.api_key) as client:
        model = client.models.list().data[0].id
        for _ in range(MOST_TURNS):
            choice = client.chat.completions.create(
                model=model, messages=messages, tools=TOOLS, temperature=0
            ).choices[0]
            if not choice.message.tool_calls:
                print(choice.message.content)
                return
            # The model's turn goes back whole: it holds the reasoning that led to the calls.
            messages.append(choice.message.model_dump(exclude_none=True))
            for call in choice.message.tool_calls:
                result = call_function(call.function.name, call.function.arguments)
                print(f"{call.function.name}({call.function.arguments}) -> {result}")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise SystemExit(f"the model still called functions after {MOST_TURNS} turns")


if __name__ == "__main__":
    main()
