"""Puts a trained model, the exam and the held-out text into the package.

python -m kindling.ship MODEL_DIR [PACKAGE_DIR]
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from firesteel.exam import EXAM, TEXT, ExamItem, write_items
from firesteel.hub import BUILT_IN
from firesteel.model.shards import SINGLE
from kindling.corpus import exam_items, perplexity_text
from kindling.export import TOKENIZER_FILES

MODEL_FILES = ("config.json", "generation_config.json", SINGLE, *TOKENIZER_FILES)


def ship(model: Path, package: Path) -> None:
    package.mkdir(parents=True, exist_ok=True)
    for name in MODEL_FILES:
        shutil.copyfile(model / name, package / name)
    write_items(package / EXAM.name, exam_items())
    texts = [ExamItem(family=item.family, messages=item.messages, text=item.text) for item in perplexity_text()]
    write_items(package / TEXT.name, texts)


def main() -> None:
    parser = argparse.ArgumentParser(description="Ship Kindling in the package.")
    parser.add_argument("model", type=Path)
    parser.add_argument("package", type=Path, nargs="?", default=BUILT_IN)
    given = parser.parse_args()
    ship(given.model, given.package)


if __name__ == "__main__":
    main()
