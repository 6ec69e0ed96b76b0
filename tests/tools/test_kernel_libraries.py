"""The checks of kernel libraries: one part that breaks does not hide the others, and the table comes last."""

import pytest

import kernel_libraries
from kernel_libraries import Row


def run(monkeypatch, *arguments):
    monkeypatch.setattr("sys.argv", ["kernel_libraries.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        kernel_libraries.main()
    return ended.value.code


def test_part_that_raises_is_wrong_and_the_next_one_still_runs(monkeypatch, capsys):
    def break_off():
        yield Row("first", "bit for bit", True)
        raise RuntimeError("no GPU\nat all")

    monkeypatch.setattr(kernel_libraries, "check_orders", break_off)
    monkeypatch.setattr(kernel_libraries, "check_quantizers", lambda: iter([Row("second", "differs", None)]))
    assert run(monkeypatch, "orders", "quantizers") == 1
    assert capsys.readouterr().out.splitlines()[-3:] == [
        "| first | bit for bit | right |",
        "| orders | RuntimeError: no GPU | WRONG |",
        "| second | differs |  |",
    ]


def test_nothing_wrong_exits_with_0(monkeypatch, capsys):
    monkeypatch.setattr(kernel_libraries, "show_proof", lambda: iter([Row("module", "3 kernels", None)]))
    assert run(monkeypatch, "proof") == 0


def test_unknown_part_shows_how_to_call_it(monkeypatch):
    assert "quantizers" in run(monkeypatch, "everything")


@pytest.mark.parametrize(("kernels", "graphs"), [("", True), ("attention=triton", False)])
def test_engines_capture_no_graphs_with_attention_that_plans_on_the_host(monkeypatch, kernels, graphs):
    opened = []
    monkeypatch.setattr(kernel_libraries, "load_engine", lambda folder, config: opened.append((folder, config)))
    kernel_libraries.open_engine(kernels, None)
    ((folder, config),) = opened
    assert (folder / "config.json").is_file() and config.kernels.kernels == kernels
    assert config.kernels.cuda_graphs == graphs
