"""The mechanical part of our rules of English: docstring beginnings, phrases and names to avoid, layout."""

import ast
import collections
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "firesteel"
PYTHON_FOLDERS = ("src", "tests", "tools", "examples")
BARE_BEGINNINGS = ("Of", "That", "To", "By", "Whether")
# Private phrases, and what to write instead.
PHRASES = {
    r"\bknows no\b": "say what the file does; the import test proves what it does not know",
    r"\bso many\b": "N of them",
    r"\bis no number\b": "is NaN",
}
# Names that say nothing about a loop variable; pairs such as `one, other` are not loops.
VAGUE_NAMES = {"one", "found", "some"}
# Tuned tiles are stamped with the tokens of these files (kernels/tiles/stamp.py): a new name would void them.
STAMPED = SOURCE / "kernels" / "triton"
MOST_FMT_SKIPS = {"src": 5, "tests and tools": 5}  # for tables of numbers
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings_of(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
            yield getattr(node, "lineno", 1), text


def begins_bare(text):
    """Returns true for "Of the inputs." and "To who reads it", false for "To-do list" and "By-product"."""
    return re.match(rf"(?:{'|'.join(BARE_BEGINNINGS)})\b(?!-)", text) is not None


def files_with_prose():
    device_code = [path for path in (SOURCE / "kernels" / "csrc").iterdir() if path.suffix in (".cu", ".cuh")]
    documents = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]
    code = [path for folder in PYTHON_FOLDERS for path in (ROOT / folder).rglob("*.py") if path != Path(__file__)]
    return sorted([*code, *device_code, *documents])


def loop_variables_of(path):
    """Yields (line, name) of every variable of a loop or a comprehension."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
            yield from ((name.lineno, name.id) for name in ast.walk(node.target) if isinstance(name, ast.Name))


def test_docstrings_begin_with_a_verb_or_a_noun_phrase():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {text.splitlines()[0]}"
        for path in sorted(SOURCE.rglob("*.py"))
        for line, text in docstrings_of(path)
        if begins_bare(text)
    ]
    assert not offenders, "\n".join(offenders)


def test_private_phrases_are_not_used():
    offenders = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()} ({instead})"
        for path in files_with_prose()
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        for phrase, instead in PHRASES.items()
        if re.search(phrase, line, re.IGNORECASE)
    ]
    assert not offenders, "\n".join(offenders)


def test_loop_variables_say_what_they_are():
    offenders = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for folder in PYTHON_FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.is_relative_to(STAMPED)
        for line, name in loop_variables_of(path)
        if name in VAGUE_NAMES
    ]
    assert not offenders, "\n".join(offenders)


def comments_of(path):
    with path.open("rb") as file:
        yield from (token.string for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT)


@pytest.mark.parametrize(
    ("where", "folders"), [("src", ["src"]), ("tests and tools", ["tests", "tools", "examples"])], ids=str
)
def test_layout_is_left_to_the_formatter(where, folders):
    skips = collections.Counter(
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        for comment in comments_of(path)
        if re.match(r"#\s*fmt:\s*(?:skip|off)", comment)
    )
    worst = "\n".join(f"{count} {name}" for name, count in skips.most_common(10))
    assert skips.total() <= MOST_FMT_SKIPS[where], f"{skips.total()} in {where}; most in\n{worst}"


@pytest.mark.parametrize(
    ("text", "is_bare"),
    [
        ("Of the inputs.", True),
        ("That was launched last.", True),
        ("To who reads it", True),
        ("By", True),
        ("Whether it fits.", True),
        ("Returns the inputs.", False),
        ("Often called.", False),
        ("To-do list.", False),
        ("Bytes per token.", False),
        ("Tokens of a request.", False),
    ],
)
def test_bare_beginnings_are_recognised(text, is_bare):
    assert begins_bare(text) == is_bare
