"""Verbs without their packages: the others work, and these say what is missing."""

import subprocess
import sys

BARE = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"msgspec", "starlette", "uvicorn", "prometheus_client", "llguidance"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from firesteel.cli import main
sys.argv = ["firesteel", *sys.argv[1:]]
main()
"""


def run_bare(*args):
    return subprocess.run([sys.executable, "-c", BARE, *args], capture_output=True, text=True, timeout=120)


def test_measuring_verbs_work_on_a_bare_machine():
    found = run_bare("bench", "decode", "--help")
    assert found.returncode == 0 and "--context" in found.stdout, found.stderr
    assert run_bare("roofline", "--gpu", "gb10").returncode == 0


def test_a_verb_without_its_package_names_it():
    found = run_bare("serve", "--port", "0")
    assert found.returncode != 0 and "firesteel serve needs the package" in found.stderr
    assert "pip install" in found.stderr and "Traceback" not in found.stderr
