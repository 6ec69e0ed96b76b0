"""Where the plugin finds the checkpoint that vLLM has put somewhere."""

from types import SimpleNamespace

import pytest

from firesteel.vllm_plugin.assembly import find_weights

COMMIT = "c" * 40


def new_config(model, directory=None):
    return SimpleNamespace(
        model_config=SimpleNamespace(model=str(model), revision=None),
        load_config=SimpleNamespace(download_dir=None if directory is None else str(directory)),
    )


@pytest.fixture
def repository(tmp_path):
    """A repository as vLLM downloads it with --download-dir."""
    folder = tmp_path / "models--some--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    return folder / "snapshots" / COMMIT


def test_folder_is_taken_as_it_is(tmp_path):
    assert find_weights(new_config(tmp_path)) == tmp_path


def test_weights_are_found_in_the_download_directory(repository, tmp_path):
    """Only the configuration is in the usual cache then."""
    assert find_weights(new_config("some/model", tmp_path)) == repository
