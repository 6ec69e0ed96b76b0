"""All verbs: module, summary and example of each. A module is imported when its verb is asked for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

PANELS = ("Run", "Check", "Measure", "Convert", "Lab")
PROGRAM = "firesteel"
NEAR = 0.6  # similarity by difflib from which a word may be a misspelling of a verb


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """A row of the help page."""

    name: str  # "serve", or "lab run" for a verb of a group
    module: str  # below firesteel.cli; importing it registers the verb, and must not import torch
    panel: str  # of the program's help page; empty: only on the page of its group
    summary: str
    example: str  # arguments after the name
    is_group: bool = False

    @property
    def example_line(self) -> str:
        return f"{PROGRAM} {self.name} {self.example}".rstrip()


def _verb(name: str, module: str, panel: str, summary: str, example: str, *, is_group: bool = False) -> Verb:
    return Verb(name=name, module=module, panel=panel, summary=summary, example=example, is_group=is_group)


_ROWS = (
    _verb("serve", "model.serve", "Run", "Serve a model over the OpenAI API", "gpt-oss-20b --port 8000"),
    _verb("chat", "chat.command", "Run", "Chat with a model on the terminal", "--model gpt-oss-20b"),
    _verb("generate", "model.generate", "Run", "Continue a text", '"The capital of France is"'),
    _verb("pull", "model.pull", "Run", "Fetch a model from the Hugging Face hub", "gpt-oss-20b"),
    _verb("list", "model.list", "Run", "Show the models on this machine", "--json"),
    _verb("env", "model.env", "Run", "Show every setting, its value and its origin", "--gpu gb10"),
    _verb("doctor", "machine.doctor", "Check", "Examine this machine and what would be used", "--json"),
    _verb("verify", "machine.verify", "Check", "Compare kernels with their references", "--op linear --quick"),
    _verb("prove", "machine.prove", "Check", "Compile kernels for any GPU, read their code", "--target sm_121a"),
    _verb("eval", "model.evaluate", "Check", "Held-out questions and perplexity of a model", "--limit 20"),
    _verb("spark-report", "machine.spark_report", "Check", "All checks of this machine in one file", "--quick"),
    _verb("bench", "bench.options", "Measure", "Time ops, steps, the engine or the server", "ops", is_group=True),
    _verb("profile", "machine.profile", "Measure", "Show where the time of a step goes", "--batch 4 --steps 8"),
    _verb("roofline", "machine.roofline", "Measure", "Predict speed from a GPU's memory", "--gpu gb10"),
    _verb("tune", "machine.tune", "Measure", "Measure tiles for this GPU", "--op linear --out tiles.json"),
    _verb("quantize", "model.quantize", "Convert", "Write dense layers in MXFP4", "gpt-oss-20b OUT --layers qkv,o"),
    _verb("calibrate", "model.calibrate", "Convert", "Compute scales for an FP8 KV cache", "kindling scales.json"),
    _verb("lab", "lab.run", "", "Verify, stress, measure and compare servers", "run --quick", is_group=True),
    _verb("lab run", "lab.run", "Lab", "Take a server through levels 1 to 6", "--quick --model kindling"),
    _verb("lab benchy", "lab.benchy", "Lab", "Speeds as llama-benchy measures them", "--pp 512 --tg 32"),
    _verb("lab board", "lab.board", "Lab", "Show all results side by side", "results --targets spark.toml"),
    _verb("lab compare", "lab.compare", "Lab", "Compare two results", "before/result.json after/result.json"),
    _verb("lab judge", "lab.judge", "Lab", "Judge logs, traces and libraries alone", "server.log --gpu gb10"),
    _verb("lab matrix", "lab.matrix", "Lab", "Measure all combinations of settings", "--gates sinks"),
    _verb("lab reference", "lab.reference", "Lab", "Record a server's answers", "--url http://HOST --out a.json"),
    _verb("lab report", "lab.report", "Lab", "Write the report of a result again", "firesteel-lab/result.json"),
    _verb("lab rerun", "lab.rerun", "Lab", "Repeat the run of a result", "firesteel-lab/result.json --dry"),
    _verb("lab review", "lab.review", "Lab", "Measure one setting off and on", "cuda_graphs --rounds 3"),
    _verb("bench ops", "bench.ops", "", "Ops at a model's shapes", "--op linear --m 1,64"),
    _verb("bench decode", "bench.decode", "", "Whole decoding steps", "--batch 1,8 --context 2048,8192"),
    _verb("bench prefill", "bench.prefill", "", "Prompts up to their first token", "--tokens 512,2048"),
    _verb("bench engine", "bench.engine", "", "The engine at several concurrencies", "--concurrency 1,16"),
    _verb("bench workload", "bench.workload", "", "Mixed requests, as chats send them", "--closed 1,8"),
    _verb("bench frontend", "bench.frontend", "", "The HTTP server alone", "--concurrency 32"),
    _verb("bench agreement", "bench.agreement", "", "Tokens that stay the same in a batch", "--requests 16"),
    _verb("bench speculate", "bench.speculate", "", "Verifying drafted tokens", "--requests 1,4 --rows 8"),
    _verb("bench quality", "bench.quality", "", "The cost of each precision", "--limit 20"),
)
VERBS = {verb.name: verb for verb in _ROWS}

# Verbs of other programs -> what to do here
HINTS = {
    "run": "chat with a model by `firesteel chat`, continue a text by `firesteel generate`, or serve it by "
    "`firesteel serve`; servers of any engine are checked by `firesteel lab run`",
    "ps": "a server runs in the foreground: its state is at /health and on the page at its address",
    "stop": "a server stops on Ctrl-C or SIGTERM",
    "start": "start a server by `firesteel serve`",
    "ls": "the models on this machine are shown by `firesteel list`",
    "models": "the models on this machine are shown by `firesteel list`",
    "show": "models are shown by `firesteel list`, settings by `firesteel env`",
    "rm": "`firesteel list --json` names the folder of each model: delete it",
    "download": "a model is fetched by `firesteel pull`",
    "fetch": "a model is fetched by `firesteel pull`",
    "complete": "a text is continued by `firesteel generate`",
    "config": "settings are shown by `firesteel env`, and read from a file by `--config FILE`",
    "test": "kernels are checked by `firesteel verify`, servers by `firesteel lab run`",
    "help": "help is shown by `firesteel --help`",
    "version": "the version is shown by `firesteel --version`",
}


def list_children(group: str) -> tuple[Verb, ...]:
    """Returns the verbs of a group; the program itself is the empty group."""
    return tuple(verb for verb in _ROWS if verb.name.rpartition(" ")[0] == group)


def explain_unknown(group: str, word: str) -> str:
    """Returns the error for a word that is not a verb, with what was probably meant."""
    said = f"no verb {f'{group} {word}'.strip()!r}"
    if not group and word in HINTS:
        return f"{said}: {HINTS[word]}"
    return f"{said}; {suggest(group, word)}see `{f'{PROGRAM} {group}'.strip()} --help`"


def suggest(group: str, word: str) -> str:
    """Returns a question that names the nearest verbs: those of the group first, then the same word elsewhere."""
    own = {verb.name.rpartition(" ")[2]: verb.name for verb in list_children(group)}
    near = [own[match] for match in difflib.get_close_matches(word, own, n=2, cutoff=NEAR)]
    near += [name for name in VERBS if name.rpartition(" ")[2] == word]
    return f"did you mean {' or '.join(f'`{PROGRAM} {name}`' for name in near)}? " if near else ""
