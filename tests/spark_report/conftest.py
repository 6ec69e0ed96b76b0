"""A fake firesteel, and the report of a run against it."""

import sys
import zipfile
from pathlib import Path

import pytest

import firesteel
from firesteel.device import GIB, find_device
from firesteel.device.host_memory import HostMemory
from firesteel.spark_report.run import make_report

# Verify dies, bench leaves a record.
STUB = """
import sys
from pathlib import Path
verb = sys.argv[1]
if verb == "verify":
    sys.exit(f"Traceback in {Path.home()}/secret/verify.py")
if verb == "bench":
    from firesteel.config import resolve
    from firesteel.device import find_device
    from firesteel.measure.record import Record
    out = Path(sys.argv[sys.argv.index("--out") + 1])
    config = resolve({"model": str(Path.home() / "models")}).config
    Record.now(
        find_device("cpu"), config, name="op linear", unit="s", samples=[1.0], warmups=1, parameters={"m": 1},
    ).save(out)
    (out / "ops.html").write_text(f"<html>{Path.home()}/x")
    print('[{"bound": "read"}, {"why": "refused"}]')
if verb == "doctor":
    print('[{"status": "ok", "found": "%s/lib"}, {"status": "note"}]' % Path.home())
if verb == "prove":
    print('[{"verdict": "bf16"}]')
"""


def read_zip(path):
    """Returns the files of a zip file by name, as text; charts are not."""
    with zipfile.ZipFile(path) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name).decode(errors="replace") for name in packed.namelist()}


@pytest.fixture(scope="module", autouse=True)
def enough_memory():
    """The guard sees free memory, whatever else runs on this machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("firesteel.spark_report.run.find_host_memory", lambda: HostMemory(100 * GIB, 50 * GIB))
        yield


@pytest.fixture
def unzip():
    return read_zip


@pytest.fixture(scope="module")
def report(tmp_path_factory, enough_memory):
    """(parts, files of the zip, printed lines) of a run against the stub."""
    told, out = [], tmp_path_factory.mktemp("report") / "report.zip"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(firesteel.__file__).parents[1]))
        command = (sys.executable, "-c", STUB)
        parts = make_report(find_device("cpu"), out, quick=True, tell=told.append, command=command)
    return parts, read_zip(out), told
