"""Verbs are imported when they run; errors, completions and Ctrl-C."""

import json
import os
import subprocess
import sys

import pytest

from firesteel.cli import app
from firesteel.cli.group import GROUPS, load_verb
from firesteel.cli.verbs import VERBS
from firesteel.version import find_version

# What a help page must not import, and the requests that are made in one process.
LIGHT = """
import contextlib, io, json, sys
HEAVY = "torch triton numpy safetensors pydantic tokenizers altair httpx2 starlette uvicorn psutil".split()
import firesteel
seen, report = set(), {}
def look(name):
    found = {module for module in HEAVY if module in sys.modules} - seen
    seen.update(found)
    if found:
        report[name] = sorted(found)
look("import firesteel")
from firesteel.cli import main
from firesteel.cli.verbs import VERBS
def ask(*words):
    sys.argv = ["firesteel", *words]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        try:
            main()
        except SystemExit:
            pass
    look(" ".join(words))
for name in ["", *VERBS]:
    ask(*name.split(), "--help")
    ask(*name.split(), "--no-such-flag")
ask("serv")
ask("ps")
ask("--version")
HEAVY.remove("pydantic")  # Typer's, to read values
ask("generate", "x", "--model", "/no/such/model")
ask("serve", "/no/such/model")
ask("eval", "--model", "gpt-oss-2b")
print(json.dumps(report))
"""


def test_neither_help_nor_errors_import_what_only_runs_need():
    """A module of `firesteel.cli.verbs` that imports torch at its head fails here: import it in the function."""
    result = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True, check=True)
    assert json.loads(result.stdout) == {}


def test_every_verb_of_a_module_is_in_the_table():
    for name in VERBS:
        load_verb(name)
    for group, typer_app in GROUPS.items():
        own = [name.rpartition(" ")[2] for name in VERBS if name.rpartition(" ")[0] == group]
        made = [
            registered.name or registered.callback.__name__.replace("_", "-")
            for registered in typer_app.registered_commands
        ]
        assert set(made) <= set(own), group


def test_program_is_the_group_without_a_name():
    assert GROUPS[""] is app


def test_unknown_verb_is_an_error_with_a_suggestion(run):
    result = run("serv")
    assert result.exit_code == 2 and "did you mean `firesteel serve`?" in result.stderr
    assert "`firesteel list`" in run("ls").stderr
    assert "No such option" in run("--serv").stderr


def test_version_is_shown(run):
    assert run("--version").stdout == f"firesteel {find_version()}\n"


@pytest.mark.parametrize("verb", ["env", "doctor"])
def test_interrupt_exits_with_130(run, monkeypatch, verb):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("firesteel.cli.model.env.list_settings", interrupt)
    monkeypatch.setattr("firesteel.doctor.examine", interrupt)
    assert run(verb).exit_code == 130


@pytest.mark.parametrize(
    ("line", "completions", "others"),
    [
        ("firesteel ca", {"calibrate"}, {"chat"}),
        ("firesteel bench d", {"decode"}, {"ops"}),
        ("firesteel generate --kv-d", {"--kv-dtype"}, {"--kv-scales"}),
        ("firesteel serve --model gpt-oss-1", {"gpt-oss-120b"}, {"gpt-oss-20b"}),
    ],
)
def test_shell_completes_verbs_flags_and_models(run, line, completions, others):
    words = {"_FIRESTEEL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    result = subprocess.run(
        [sys.executable, "-c", "import sys; from firesteel.cli import main; sys.argv = ['firesteel']; main()"],
        env={**os.environ, **words},
        capture_output=True,
        text=True,
    )
    shown = set(result.stdout.split())
    assert completions <= shown and not others & shown, result.stderr
