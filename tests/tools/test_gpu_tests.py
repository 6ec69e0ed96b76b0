"""The runner of the tier `gpu`: outcomes, tests that end their process, time limits and continued runs."""

import io
import json

import pytest
from rich.console import Console

import gpu_tests
from gpu_tests import CRASHED, FAILED, PASSED, SKIPPED, UNREACHED, Results

TESTS = """
import os, time, pytest
pytestmark = pytest.mark.gpu

def test_right(): pass
def test_wrong(): assert 1 == 2
def test_left_out(): pytest.skip("needs two GPUs")
def test_ends_its_process(): os._exit(3)
def test_behind_it(): pass
def test_breaks_the_context(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_in_a_new_process(): pass

@pytest.fixture
def ends_its_process():
    yield
    os._exit(3)

def test_ends_in_its_teardown(ends_its_process): pass
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Folder of tests, which is the current one, with the marker `gpu` and without this project's settings."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = gpu\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*, passed=()):
    return gpu_tests.run(["."], jobs=2, seconds=300, out=gpu_tests.Path("out.jsonl"), passed=set(passed))


class OverInTestB(gpu_tests.Deadline):
    """A deadline that passes as soon as `test_b` has started."""

    @property
    def is_over(self):
        started = {"event": "started", "test": "test_a.py::test_b"}
        return started in gpu_tests.read_entries(gpu_tests.Path("out.jsonl"))


def by_name(results):
    return {test.split("::")[1]: outcome for test, outcome in results.outcomes.items()}


@pytest.mark.slow
def test_every_test_has_its_outcome_though_some_end_their_process(folder):
    (folder / "test_a.py").write_text(TESTS)
    (folder / "test_b.py").write_text("import pytest\npytest.importorskip('missing_package')\n")
    results = run()
    assert by_name(results) == {
        "test_right": PASSED,
        "test_wrong": FAILED,
        "test_left_out": SKIPPED,
        "test_ends_its_process": CRASHED,
        "test_behind_it": PASSED,
        "test_breaks_the_context": FAILED,
        "test_in_a_new_process": PASSED,
        "test_ends_in_its_teardown": CRASHED,
    }
    assert "assert 1 == 2" in results.reasons["test_a.py::test_wrong"]
    assert results.modules.keys() == {"test_b.py"}
    assert results.exit_code == 1
    written = Results()
    written.read(gpu_tests.read_entries(folder / "out.jsonl"))
    assert written.outcomes == results.outcomes


@pytest.mark.slow
def test_what_is_not_reached_in_time_is_not_called_passed_and_can_be_run_afterwards(folder, monkeypatch):
    test = "import pytest, time\npytestmark = pytest.mark.gpu\ndef test_a(): pass\ndef test_b(): time.sleep({})\n"
    (folder / "test_a.py").write_text(test.format(60))
    with monkeypatch.context() as patch:
        patch.setattr(gpu_tests, "Deadline", OverInTestB)
        results = run()
    assert by_name(results) == {"test_a": PASSED, "test_b": UNREACHED}
    assert results.exit_code == 3
    (folder / "test_a.py").write_text(test.format(0))
    again = run(passed={"test_a.py::test_a"})
    assert by_name(again) == {"test_b": PASSED}
    assert again.exit_code == 0


def test_a_failed_teardown_fails_a_test_that_passed():
    results = Results()
    ended = {"event": "ended", "test": "a.py::b", "reason": ""}
    results.read([ended | {"outcome": PASSED}, ended | {"outcome": FAILED, "reason": "left open"}])
    assert results.outcomes == {"a.py::b": FAILED}


def test_a_failure_stays_one_whatever_its_teardown_says():
    results = Results()
    ended = {"event": "ended", "test": "a.py::b", "reason": ""}
    results.read([ended | {"outcome": FAILED}, ended | {"outcome": SKIPPED}])
    assert results.outcomes == {"a.py::b": FAILED}


def test_why_no_test_of_a_module_could_run_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(gpu_tests, "run_pytest", lambda out, flags, deadline: "ImportError in conftest.py")
    assert gpu_tests.run_module(["a.py::b"], tmp_path / "out.jsonl", gpu_tests.Deadline(60)) == []
    assert "ImportError in conftest.py" in capsys.readouterr().out


def test_what_a_later_run_found_counts():
    """A test that failed once was run again in each continued run, and one that was cut off seemed to pass."""
    results = Results()
    started, ended = ({"event": event, "test": "a.py::b", "reason": ""} for event in ("started", "ended"))
    results.read([started, ended | {"outcome": FAILED, "reason": "why"}, started, ended | {"outcome": PASSED}])
    assert results.outcomes == {"a.py::b": PASSED} and not results.reasons
    results.read([started])
    assert results.outcomes == {"a.py::b": UNREACHED}


@pytest.mark.parametrize(
    "outcomes, modules, code",
    [
        ([PASSED], {}, 0),
        ([], {}, 3),
        ([PASSED, SKIPPED], {}, 3),
        ([PASSED, UNREACHED], {}, 3),
        ([PASSED], {"b.py": "skipped: could not import"}, 3),
        ([PASSED], {"b.py": "failed: SyntaxError"}, 1),
        ([PASSED, FAILED, UNREACHED], {}, 1),
        ([PASSED, CRASHED], {}, 1),
    ],
)
def test_exit_code_says_whether_all_was_judged(outcomes, modules, code):
    results = Results({str(number): outcome for number, outcome in enumerate(outcomes)}, modules=modules)
    assert results.exit_code == code


def test_a_line_that_was_cut_off_is_left_out(tmp_path):
    path = tmp_path / "out.jsonl"
    path.write_text(json.dumps({"event": "collected", "test": "a"}) + '\n{"event": "en')
    assert gpu_tests.read_entries(path) == [{"event": "collected", "test": "a"}]
    assert gpu_tests.read_entries(tmp_path / "none.jsonl") == []


def test_page_names_failures_and_counts_by_folder():
    results = Results(
        {"tests/a/test_b.py::test_c[1]": FAILED, "tests/a/test_b.py::test_d": PASSED},
        reasons={"tests/a/test_b.py::test_c[1]": "assert [1] == 2"},
        modules={"tests/a/test_e.py": "skipped: could not import 'vllm'"},
    )
    text = io.StringIO()
    gpu_tests.show(results, Console(file=text, width=100))
    assert "failed tests/a/test_b.py::test_c[1]\nassert [1] == 2" in text.getvalue()
    assert "not collected tests/a/test_e.py: skipped: could not import 'vllm'" in text.getvalue()
    assert ["tests/a", "1", "1"] in [line.replace("│", " ").split() for line in text.getvalue().splitlines()]


def test_without_a_gpu_it_says_so(monkeypatch):
    monkeypatch.setattr(gpu_tests.sys, "argv", ["gpu_tests.py"])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit, match="the tier gpu needs an NVIDIA GPU"):
        gpu_tests.main()
