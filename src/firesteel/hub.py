"""Finds a checkpoint folder: built in, by path, or by name in the Hugging Face cache. Never downloads."""

from __future__ import annotations

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

from firesteel.errors import UserError

BUILT_IN = Path(__file__).parent / "kindling"  # the small model that ships with the package
SHORT_NAMES = {"gpt-oss-120b": "openai/gpt-oss-120b", "gpt-oss-20b": "openai/gpt-oss-20b"}


def find_checkpoint(name: str) -> Path:
    if name == BUILT_IN.name:
        return BUILT_IN
    if name and Path(name).is_dir():  # the empty path is the current folder
        return Path(name)
    repository = SHORT_NAMES.get(name, name)
    if name.startswith((".", "/", "~")) or repository.count("/") != 1:
        known = ", ".join([*SHORT_NAMES, BUILT_IN.name])
        raise UserError(
            f"{name or 'the empty name'} is not a folder or a name like openai/gpt-oss-20b (short names: {known})"
        )
    try:
        return Path(snapshot_download(repository, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise UserError(
            f"{repository} is not in the local Hugging Face cache and {name} is not a folder; "
            f"download it with `hf download {repository}`, or give the checkpoint folder"
        ) from error
