"""Finds a checkpoint folder by path, or by name in the local Hugging Face cache; never downloads."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from firesteel.errors import UserError

SHORT_NAMES = {"gpt-oss-120b": "openai/gpt-oss-120b", "gpt-oss-20b": "openai/gpt-oss-20b"}


def find_checkpoint(name: str) -> Path:
    if not name:
        raise UserError("no model was named: give --model (a checkpoint folder or a name) or set FIRESTEEL_MODEL")
    if Path(name).is_dir():
        return Path(name)
    repository = SHORT_NAMES.get(name, name)
    if name.startswith((".", "/", "~")) or repository.count("/") != 1:
        known = ", ".join(SHORT_NAMES)
        raise UserError(f"{name} is not a folder, nor a name like openai/gpt-oss-20b (short names: {known})")
    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{repository} is not in the local Hugging Face cache and {name} is not a folder; "
            f"get it with `hf download {repository}`, or give the checkpoint's folder"
        ) from error
