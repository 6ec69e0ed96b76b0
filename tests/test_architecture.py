"""Rules of the architecture: imports, access to the environment, no unused setting."""

import ast
import graphlib
import re
from pathlib import Path

import pytest

from firesteel.config import all_settings

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "firesteel"
# Each part may import itself and what its row names; the ground is there for all.
GROUND = {
    "errors",
    "sampling_rules",
    "types",
    "device",
    "config",
    "heap",
    "surroundings",
    "untrusted",
    "version",
    "atomic",
    "exit_code",
}
MAY_IMPORT = {
    "errors": set(),
    "config": {"errors"},
    "sampling_rules": set(),
    "types": {"errors", "sampling_rules"},
    "device": {"errors"},
    "heap": set(),
    "untrusted": {"errors"},
    "surroundings": {"config", "device"},
    "atomic": set(),
    "version": set(),
    "exit_code": set(),
    "formats": set(),
    "kernels": {"formats", *GROUND},
    "model": {"formats", "kernels", *GROUND},
    "engine": {"formats", "kernels", "model", *GROUND},
    "vllm_plugin": {"formats", "kernels", "model", "engine", *GROUND},
    "measure": {"formats", "kernels", "model", "engine", *GROUND},
    "chat": {"errors", "untrusted"},
    "hub": {"errors", "untrusted"},
    "progress": set(),
    "llm": {"formats", "kernels", "model", "engine", "chat", "hub", "progress", *GROUND},
    "exam": {"chat", "hub"},
    "eval": {"chat", "exam", "llm", *GROUND},
    "quality": {"chat", "exam", "eval", "llm", "measure", *GROUND},
    "calibrate": {"formats", "engine", "hub", "exam", "eval", "llm", *GROUND},
    "server": {"chat", "engine", "measure", "hub", "llm", *GROUND},
    "defaults": {"kernels", *GROUND},
    "doctor": {"kernels", "vllm_plugin", *GROUND},
    "plot": {"measure", *GROUND},
    "spark_report": {"kernels", "measure", "plot", *GROUND},
    "lab": {
        "kernels",
        "model",
        "engine",
        "chat",
        "hub",
        "llm",
        "exam",
        "eval",
        "measure",
        "plot",
        *GROUND,
    },
    "cli": {
        "lab",
        "formats",
        "kernels",
        "model",
        "engine",
        "chat",
        "hub",
        "llm",
        "server",
        "exam",
        "eval",
        "quality",
        "calibrate",
        "defaults",
        "doctor",
        "measure",
        "plot",
        "spark_report",
        *GROUND,
    },
    "__init__": {"config", "errors", "llm", "types"},
    "__main__": {"cli"},
}
BARE_GPU_BOX = {"torch", "triton", "numpy", "safetensors", "cuda"}  # what the lower parts may import from outside
# The border between the engine's process and its parent: only these files of the lower parts use msgspec.
BORDER = {
    f"engine/process/{name}.py"
    for name in ("messages", "channel", "progress", "main", "handle", "waiters", "client")
}
GRAMMAR = "engine/sample/grammar.py"  # the only file of the lower parts that uses llguidance, for the first grammar
MOST_MODULES = 20  # per folder, beside its sub-packages
LOWER_PARTS = (
    "formats",
    "kernels",
    "model",
    "engine",
    "measure",
    "device",
    "types",
    "sampling_rules",
    "errors",
    "untrusted",
)
PYTHON_FILES = sorted(SOURCE.rglob("*.py"))


def part_of(path):
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imports_of(path):
    """Yields full names of modules imported anywhere in a file."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names if node.module == "firesteel")


def module_imports(path):
    """Does the same as `imports_of`, with names imported from a package resolved to its modules."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                place = SOURCE.parent.joinpath(*node.module.split("."), alias.name)
                is_module = place.is_dir() or place.with_suffix(".py").is_file()
                yield f"{node.module}.{alias.name}" if is_module else node.module


def test_every_part_is_in_the_table():
    assert {part_of(path) for path in PYTHON_FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_down(path):
    allowed = MAY_IMPORT[part_of(path)] | {part_of(path)}
    for name in imports_of(path):
        words = name.split(".")
        if words[0] == "firesteel" and len(words) > 1:
            assert words[1] in allowed, f"{part_of(path)} must not import {name}"


def unit_of(words):
    """Returns the sub-package of a module, or the module itself if it lies directly in its part."""
    nested = len(words) > 2 or SOURCE.joinpath(*words[:2]).is_dir()
    return ".".join(words[:2] if nested else words)


def unit_imports():
    """Returns {unit: units of the same part that it imports anywhere, inside functions too}."""
    edges = {}
    for path in PYTHON_FILES:
        words = path.relative_to(SOURCE).with_suffix("").parts
        unit = unit_of(words[:-1] if words[-1] == "__init__" else words)
        for name in module_imports(path):
            other = name.split(".")[1:]
            if other and other[0] == words[0] and (target := unit_of(other)) != unit:
                edges.setdefault(unit, set()).add(target)
    return edges


def test_sub_packages_import_each_other_in_one_direction():
    """Includes imports inside functions, which would hide a cycle from Python."""
    graphlib.TopologicalSorter(unit_imports()).prepare()  # raises CycleError, which names the cycle


@pytest.mark.parametrize("folder", sorted({path.parent for path in PYTHON_FILES}), ids=str)
def test_folders_stay_small(folder):
    modules = [path for path in folder.glob("*.py") if path.name not in ("__init__.py", "__main__.py")]
    assert len(modules) <= MOST_MODULES, [path.name for path in modules]


def test_no_two_parts_import_each_other():
    for part, below in MAY_IMPORT.items():
        for other in below:
            assert part not in MAY_IMPORT[other], f"{part} and {other}"


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_lower_parts_run_on_a_bare_gpu_box(path):
    if part_of(path) in LOWER_PARTS:
        standard = set(__import__("sys").stdlib_module_names)
        outside = {name.split(".")[0] for name in imports_of(path)} - standard - {"firesteel"}
        place = str(path.relative_to(SOURCE))
        allowed = BARE_GPU_BOX | ({"msgspec"} if place in BORDER else {"llguidance"} if place == GRAMMAR else set())
        assert outside <= allowed, outside - allowed


@pytest.mark.parametrize("path", PYTHON_FILES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_lower_parts_do_not_cross_the_process_border(path):
    """Everything but the border itself must be importable without msgspec."""
    if part_of(path) in LOWER_PARTS and str(path.relative_to(SOURCE)) not in BORDER:
        border = {f"firesteel.{Path(name).with_suffix('').as_posix().replace('/', '.')}" for name in BORDER}
        assert not border & set(imports_of(path))


def test_files_of_the_process_border_exist():
    assert all((SOURCE / name).is_file() for name in BORDER)


def test_environment_is_read_in_config_only():
    for path in PYTHON_FILES:
        if path.relative_to(SOURCE) != Path("config", "environment.py"):
            assert not re.search(r"\bos\.(environ|getenv)", path.read_text(encoding="utf-8")), path


def test_every_setting_has_a_reader_outside_config():
    readers = "\n".join(path.read_text(encoding="utf-8") for path in PYTHON_FILES if part_of(path) != "config")
    for setting in all_settings().values():
        pattern = rf"\b(?:config|{setting.section})\.(?:\w+\.)?{setting.name}\b"
        assert re.search(pattern, readers), f"nothing reads {setting.section}.{setting.name}"


def test_tests_mirror_the_source():
    """A test file lies where its subject lies; only whole-program tests have no subject file.

    Of a subject with several test files the others are named after one side of it: test_client_life.py.
    A helper that several tests share is a subject too: its test stands beside it.
    """
    whole = {"test_architecture.py", "test_english.py", "test_references.py", "test_gates.py"}
    whole |= {"test_gpt_oss_gpu.py", "test_simulated_gb10.py"}
    whole |= {"test_emulated_machine.py", "test_emulated_instructions.py"}  # their subject is the emulator
    whole |= {"test_emulated_wgmma.py", "test_emulated_widening.py"}
    whole |= {"test_spark_page.py"}  # its subject is a page of docs
    whole |= {"test_kindling_drafters.py"}  # its subject are two folders of data
    for test in (ROOT / "tests").rglob("test_*.py"):
        place = test.relative_to(ROOT / "tests")
        helper = test.with_name(test.name.removeprefix("test_"))
        if test.name in whole or place.parts[0] in ("tools", "examples", "docs") or helper.is_file():
            continue
        words = test.stem.removeprefix("test_").removeprefix("emulated_").split("_")
        whole_name = SOURCE / place.parent / "_".join(words)
        files = [whole_name.with_name("_".join(words[:count]) + ".py") for count in range(1, len(words) + 1)]
        assert whole_name.is_dir() or any(path.is_file() for path in files), f"{place} tests nothing in src"


def test_architecture_page_names_every_part():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    for part in {part_of(path) for path in PYTHON_FILES} - {"__init__", "__main__"}:
        assert f"`{part}" in page, f"docs/architecture.md does not mention {part}"


def test_architecture_page_names_every_sub_package():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = {match[1]: match[0] for match in re.finditer(r"^\| `(\w+)` \|.*$", page, re.MULTILINE)}
    for init in SOURCE.glob("*/*/__init__.py"):
        part, folder = init.parent.relative_to(SOURCE).parts
        assert f"`{folder}`" in rows[part], f"docs/architecture.md does not mention {part}/{folder}"


def test_class_names_are_defined_once():
    """A class name must identify one class of the package."""
    places = {}
    for path in PYTHON_FILES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path.relative_to(SOURCE)}:{node.lineno}")
    twice = {name: lines for name, lines in places.items() if len(lines) > 1}
    assert not twice, twice


def test_files_have_a_docstring_and_no_vague_name():
    for path in PYTHON_FILES:
        assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), path
        assert path.stem not in {"utils", "common", "base", "helpers", "manager"}, path
