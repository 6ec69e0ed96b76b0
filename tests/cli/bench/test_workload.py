"""`bench workload`: rows, records, and the errors for unsuitable options."""

import json

import pytest

from firesteel.measure.record import Record


@pytest.fixture
def bench(run, checkpoint, tmp_path):
    def invoke(*flags):
        settings = ["--model", str(checkpoint), "--device", "cpu", "--memory-reserve-gib", "0", "--scale", "0.01"]
        return run("bench", "workload", *settings, "--kv-cache-gib", "0.01", "--out", str(tmp_path), *flags)

    return invoke


def test_each_workload_has_figures_and_a_record(bench, tmp_path):
    result = bench("--turns", "1024", "--new", "400", "--closed", "2", "--rates", "40", "--open-s", "0.2", "--json")
    assert result.exit_code == 0, result.output
    turns, closed, opened = json.loads(result.stdout)
    assert (turns["kind"], turns["context"], turns["new"], turns["requests"]) == ("turns", 10, 4, 6)
    assert (closed["kind"], closed["in_flight"], closed["requests"]) == ("closed", 2, 8)
    assert opened["kind"] == "open" and opened["rate"] == 40 and opened["requests"] > 0
    assert closed["output_tok_s"] == pytest.approx(closed["output_tokens"] / closed["seconds"])
    records = {record.parameters["kind"]: record for record in map(Record.load, tmp_path.glob("*.json"))}
    assert len(records["closed"].samples) == 8 and records["closed"].unit == "ms"
    assert records["turns"].parameters["late_compilations"] == 0


def test_table_names_each_workload(bench):
    result = bench("--turns", "", "--closed", "1", "--rates", "")
    assert result.exit_code == 0, result.output
    assert "closed: in_flight 1" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--turns", "", "--closed", "", "--rates", ""], "no workload is left"),
        (["--closed", "x"], "--closed x"),
        (["--scale", "1"], "exceed the context of 256"),
    ],
)
def test_unsuitable_options_are_refused(bench, flags, message):
    result = bench(*flags)
    assert result.exit_code != 0 and message in " ".join(str(result.exception or result.output).split())
