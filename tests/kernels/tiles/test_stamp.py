"""The stamp of the Triton sources: which changes it covers."""

import pytest

from firesteel.kernels.tiles import stamp
from firesteel.kernels.tiles.stamp import hash_kernels, read_code


@pytest.fixture(autouse=True)
def fresh():
    hash_kernels.cache_clear()
    yield
    hash_kernels.cache_clear()


def test_comments_in_device_code_do_not_change_the_hash(tmp_path, monkeypatch):
    monkeypatch.setattr(stamp, "DEVICE_CODE", tmp_path)
    hashes = []
    for text in ("x = 1\n", '"""Words."""\nx = 1  # more\n', "x = 2\n"):
        (tmp_path / "one.py").write_text(text)
        hash_kernels.cache_clear()
        hashes.append(hash_kernels())
    assert hashes[0] == hashes[1] != hashes[2]


def test_changed_device_code_changes_the_hash(tmp_path, monkeypatch):
    before = hash_kernels()
    assert before == hash_kernels()
    monkeypatch.setattr(stamp, "DEVICE_CODE", tmp_path)
    hash_kernels.cache_clear()
    assert hash_kernels() != before


def test_hash_is_the_same_in_every_python():
    """Python 3.12 splits an f-string into tokens, 3.11 does not."""
    text = '"""Words."""\n\n\ndef f(x):  # more\n    """Words\n    of it."""\n    return f"{x} # none"\n'
    assert read_code(text) == 'def f ( x ) : \n { return f"{x} # none" \n }'


def test_imports_layout_and_comments_do_not_count():
    code = '"""Words."""\nimport a\nfrom b import (\n    c,\n)\n\n\ndef f(x, y):\n    """Words."""\n'
    code += "    return x + y  # words\n"
    same = '"""Other words."""\nimport d\n\ndef f(\n    x,\n    y,\n):\n    return x + y\n'
    assert read_code(code) == read_code(same)
    assert read_code(same.replace("+", "-")) != read_code(same)


def test_code_with_another_meaning_has_another_hash():
    texts = [
        "if a:\n    x()\n    y('b c')\n",
        "if a:\n    x()\ny('b c')\n",
        "if a:\n    x()\n    y('bc')\n",
        "if b:\n    x()\n    y('b c')\n",
    ]
    assert len(set(map(read_code, texts))) == len(texts)
