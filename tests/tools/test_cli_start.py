"""The tool that measures the start of the command line."""

import sys

import cli_start
from firesteel.cli.verbs import VERBS


def test_record_has_the_samples_and_medians_of_every_command(monkeypatch):
    times = iter([9.0, 1.0, 3.0, 9.0, 5.0, 5.0])
    monkeypatch.setattr(cli_start, "cpu_s", lambda command, variables: next(times))
    record = cli_start.measure("errors", ["a", "b"], 2)
    assert record.samples == (1.0, 3.0, 5.0, 5.0) and record.parameters["median_s"] == {"a": 2.0, "b": 5.0}


def test_help_of_every_verb_is_measured():
    assert {f"{name} --help" for name in VERBS} <= set(cli_start.KINDS["help"])


def test_cpu_time_of_a_process_is_counted_and_its_output_is_not_shown(capfd):
    assert cli_start.cpu_s([sys.executable, "-S", "-c", "print(sum(range(500_000)))"], {}) > 0
    assert capfd.readouterr().out == ""


def test_completions_are_asked_for_as_a_shell_does():
    command, variables = cli_start.command_of("completions", "firesteel serve --")
    assert variables["COMP_CWORD"] == "2" and variables["COMP_WORDS"] == "firesteel serve --"
    assert command[0] == sys.executable and variables["_FIRESTEEL_COMPLETE"] == "complete_bash"
