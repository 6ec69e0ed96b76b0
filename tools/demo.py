"""What `make run` does until the lab exists: asks the built-in model a few questions and shows what ran."""

from __future__ import annotations

from rich.console import Console

from firesteel import LLM, SamplingParams
from firesteel.chat.harmony import Harmony, Message, system_message
from firesteel.cli.tables import ledger_table, report_table
from firesteel.eval import evaluate

QUESTIONS = (
    "What is the capital of France? Please reply with one word only",
    "What is 347 + 285?",
    "Write the word lomina backwards.",
    "How many seconds are there in 12 minutes?",
)


def main() -> None:
    console = Console()
    llm = LLM()
    llm.ledger().timed = True
    harmony = Harmony(llm.tokenizer)
    for question in QUESTIONS:
        prompt = harmony.encode_for_completion([system_message(), Message(role="user", content=question)])
        console.print(f"[bold]{question}[/]")
        for message in harmony.decode(llm.generate([prompt], SamplingParams(max_tokens=192))[0].token_ids):
            style = "dim" if message.channel == "analysis" else "green"
            console.print(f"  {message.channel}: {message.content}", style=style, highlight=False)
    console.print(report_table(evaluate(llm, limit=5)))
    console.print(ledger_table(llm))


if __name__ == "__main__":
    main()
