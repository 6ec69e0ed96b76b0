"""Level 2 of real servers without a reference: garbage is red, whoever is said to serve it."""

from contextlib import contextmanager

import pytest

from firesteel.lab.levels import correctness as levels_correctness
from firesteel.lab.levels.coherence import COHERENCE
from firesteel.lab.run import run_lab
from firesteel.lab.servers.commands import make_command
from firesteel.lab.servers.supervisor import SupervisedServer, find_free_port
from firesteel.lab.spec import LabSpec
from firesteel.lab.verdict import Verdict
from tests.lab.kindling_variants import VARIANTS, find_model
from tests.lab.observers import RecordingObserver

NAME = "gpt-oss-120b"
ON_CPU = ("--device", "cpu")


@contextmanager
def serving(variant, folder):
    """Yields the address of a server that calls the variant gpt-oss-120b."""
    flags = (*ON_CPU, *variant.flags, "--served-model-name", NAME)
    command = make_command(
        "firesteel",
        model=find_model(variant, folder),
        port=find_free_port(),
        folder=folder,
        flags=flags,
        debug=False,
    )
    server = SupervisedServer(command, folder)
    try:
        server.wait_until_ready()
        yield command.url
    finally:
        server.stop()


def run_level_two(folder, **fields):
    folder.mkdir()
    result = run_lab(LabSpec(level="2", quick=True, keep_going=True, **fields), folder, RecordingObserver())
    return result, next(level for level in result.levels if level.level.number == "2")


def check_of(level):
    [row] = [row for row in level.checks if row.check == COHERENCE]
    return row


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_running_server_is_red_exactly_if_it_talks_garbage(tmp_path, variant):
    """A server with sinks off behind --url --engine vllm was once green."""
    with serving(variant, tmp_path) as url:
        for engine in ("vllm", "firesteel"):
            result, level = run_level_two(tmp_path / engine, url=url, engine=engine, model=f"openai/{NAME}")
            row = check_of(level)
            assert row.passed is variant.coherent, row.words
            # Without a reference the kernels stay unproven, but the answers show that sinks are on.
            assert level.verdict is (Verdict.UNPROVEN if variant.coherent else Verdict.FAILED), level.reason
            assert result.verdict is level.verdict
            sinks = result.any_slots.slots["sinks"].value
            assert sinks == ("on" if variant.coherent else "" if engine == "vllm" else sinks)


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_own_engine_is_red_exactly_if_it_talks_garbage(tmp_path, monkeypatch, variant):
    monkeypatch.setattr(levels_correctness, "open_reference", lambda target, spec: (None, "left out"))
    model = find_model(variant, tmp_path)
    result, level = run_level_two(tmp_path / "lab", model=model, flags=(*ON_CPU, *variant.flags))
    row = check_of(level)
    assert row.passed is variant.coherent, row.words
    assert (result.verdict is Verdict.FAILED) is not variant.coherent
