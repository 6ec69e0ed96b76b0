"""The verb env: the table of settings."""

from firesteel.config import all_settings


def test_env_table_shows_every_setting_in_full(run):
    """Long names were once cut off with an ellipsis, and brackets in a value vanished as markup."""
    result = run("env", "--model", "/models/[bold]x", FIRESTEEL_MAX_NUM_BATCHED_TOKENS="77")
    for setting in all_settings().values():
        assert f" {setting.name} " in result.stdout and f" {setting.env} " in result.stdout
    row = next(line for line in result.stdout.splitlines() if "max_num_batched_tokens" in line)
    assert " 77 " in row and " environment FIRESTEEL_MAX_NUM_BATCHED_TOKENS " in row
    assert "/models/[bold]x" in result.stdout
