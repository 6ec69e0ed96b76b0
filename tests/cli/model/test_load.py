"""Messages while a model is loaded."""

from types import SimpleNamespace

from firesteel.cli.model.load import load
from firesteel.engine.statistics import Statistics


def test_messages_are_not_wrapped_in_a_pipe(monkeypatch, capsys):
    sentence = "qkv of layer 0: " + "a long sentence " * 12 + "ends"
    report = SimpleNamespace(
        num_bytes=1e9, seconds=1.0, gb_s=1.0, quantized=[SimpleNamespace(in_words=lambda: sentence)]
    )
    engine = SimpleNamespace(statistics=lambda: Statistics(graphs=3, graph_s=1.25, graph_bytes=5 << 20))
    monkeypatch.setattr(
        "firesteel.cli.model.load.LLM", lambda **_: SimpleNamespace(load_report=report, engine=engine)
    )
    load({})
    said = capsys.readouterr().err.splitlines()
    assert sentence in said and "captured 3 steps in 1.2 s: 5 MiB" in said
