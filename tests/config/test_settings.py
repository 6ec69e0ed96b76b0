"""Resolution of settings: precedence, origins, files, unknown and removed names."""

import re

import pytest

from firesteel.config import REMOVED, Config, ConfigError, RemovedSettingWarning, all_settings, resolve

EVERY_SETTING = [pytest.param(setting, id=name) for name, setting in all_settings().items()]
# setting -> a value that is not the default; text that a variable holds for another one, and that one
OTHER_VALUES = {
    "model": ("folder", "elsewhere", "elsewhere"),
    "device": ("cpu", "cuda:1", "cuda:1"),
    "preset": ("spark", "as-shipped", "as-shipped"),
    "max_model_len": (100, "200", 200),
    "threads": (2, "3", 3),
    "memory_reserve_gib": (0.0, "2.5", 2.5),
    "kernels": ("route=reference", "linear=reference", "linear=reference"),
    "activation": ("mxfp8", "mxfp4", "mxfp4"),
    "prefill_activation": ("mxfp8", "bf16", "bf16"),
    "tile": ("64x128", "16x32", "16x32"),
    "tiles_file": ("here.json", "there.json", "there.json"),
    "require": ("moe=triton", "linear=triton:gemm@bf16", "linear=triton:gemm@bf16"),
    "mxfp4_layers": ("qkv", "all", "all"),
    "sinks": (False, "off", False),
    "batch_invariant": (True, "on", True),
    "cuda_graphs": (False, "off", False),
    "dependent_launch": (False, "no", False),
    "kernel_cache_dir": ("here", "there", "there"),
    "page_size": (16, "128", 128),
    "max_num_seqs": (1, "3", 3),
    "max_num_batched_tokens": (7, "9", 9),
    "kv_cache_gib": (0.5, "2.5", 2.5),
    "kv_dtype": ("fp8", "bf16", "bf16"),
    "kv_scales": ("here.json", "there.json", "there.json"),
    "run_ahead": (False, "off", False),
    "prepare": (True, "on", True),
    "prefill_graphs": (False, "off", False),
    "max_decode_delay_ms": (0.0, "2.5", 2.5),
    "prefix_caching": (False, "off", False),
    "speculate": ("ngram", "eagle3", "eagle3"),
    "draft_model": ("folder", "elsewhere", "elsewhere"),
    "num_speculative_tokens": (3, "15", 15),
    "adapt_speculation": (False, "off", False),
    "engine_restarts": (0, "5", 5),
    "engine_hang_s": (0.0, "30", 30.0),
    "crash_dir": ("here", "there", "there"),
    "gpu_memory_utilization": (0.9, "0.5", 0.5),
    "host": ("0.0.0.0", "::1", "::1"),
    "port": (0, "9000", 9000),
    "api_key": ("secret", "other", "other"),
    "api_key_file": ("here", "there", "there"),
    "share_prefixes": (True, "on", True),
    "allowed_hosts": ("*", "a,*.b", "a,*.b"),
    "allowed_origins": ("*", "http://a:1,https://b", "http://a:1,https://b"),
    "served_model_name": ("mine", "mine,yours", "mine,yours"),
    "max_waiting": (0, "3", 3),
    "max_body_mib": (0.5, "2", 2.0),
    "request_timeout_s": (0.0, "60", 60.0),
    "slow_client_s": (0.0, "2.5", 2.5),
    "drain_s": (0.0, "2.5", 2.5),
    "schema_timeout_s": (0.0, "2.5", 2.5),
    "schema_memory_mib": (64.0, "256", 256.0),
    "response_store_mib": (8.0, "8", 8.0),
    "prompt_date": ("today", "2026-01-31", "2026-01-31"),
    "log_format": ("json", "json", "json"),
    "log_prompts": (True, "on", True),
}


def value_of(settings, name):
    return getattr(getattr(settings.config, all_settings()[name].section), name)


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_tables_of_this_file_cover_every_setting():
    assert set(OTHER_VALUES) == set(all_settings())


@pytest.mark.parametrize("setting", EVERY_SETTING)
def test_default_of_each_setting_is_its_declared_one(setting):
    settings = resolve(environ={})
    assert value_of(settings, setting.name) == setting.default
    assert settings.origins[setting.name] == "default"


@pytest.mark.parametrize("setting", EVERY_SETTING)
def test_flag_beats_environment_beats_file_beats_default(setting, tmp_path):
    other, text, parsed = OTHER_VALUES[setting.name]
    file = tmp_path / "firesteel.toml"
    file.write_text(f"{setting.name} = {toml(other)}\n")
    everything = {"flags": {setting.name: setting.default}, "environ": {setting.env: text}, "file": file}
    by_flag = resolve(**everything)
    by_environment = resolve(**{**everything, "flags": {setting.name: None}})
    by_file = resolve(environ={}, file=file)
    assert value_of(by_flag, setting.name) == setting.default
    assert by_flag.origins[setting.name] == "flag"
    assert value_of(by_environment, setting.name) == parsed
    assert by_environment.origins[setting.name] == f"environment {setting.env}"
    assert value_of(by_file, setting.name) == other != setting.default
    assert by_file.origins[setting.name] == f"file {file}"


def test_each_setting_is_resolved_on_its_own(tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text("max_num_seqs = 2\n")
    settings = resolve({"page_size": 16}, environ={"FIRESTEEL_SINKS": "no"}, file=file)
    assert (settings.config.batch.page_size, settings.config.kernels.sinks) == (16, False)
    assert settings.config.batch.max_num_seqs == 2
    origins = {name: origin for name, origin in settings.origins.items() if origin != "default"}
    assert origins == {
        "page_size": "flag",
        "sinks": "environment FIRESTEEL_SINKS",
        "max_num_seqs": f"file {file}",
    }


def test_config_variable_names_the_file(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("page_size = 32\n")
    settings = resolve(environ={"FIRESTEEL_CONFIG": str(file)})
    assert settings.config.batch.page_size == 32
    assert settings.origins["page_size"] == f"file {file}"


def test_given_file_wins_over_the_config_variable(tmp_path):
    file = tmp_path / "given.toml"
    file.write_text("page_size = 32\n")
    settings = resolve(environ={"FIRESTEEL_CONFIG": str(tmp_path / "missing.toml")}, file=file)
    assert settings.config.batch.page_size == 32


def test_environment_defaults_to_that_of_the_process(monkeypatch):
    monkeypatch.setenv("FIRESTEEL_PAGE_SIZE", "32")
    assert resolve().config.batch.page_size == 32


def test_variables_without_our_prefix_are_ignored():
    assert resolve(environ={"PAGE_SIZE": "x", "firesteel_page_size": "x"}).config == Config()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"flags": {"pagesize": 16}}, "unknown setting pagesize; did you mean page_size?"),
        (
            {"environ": {"FIRESTEEL_PAGESIZE": "16"}},
            "unknown variable FIRESTEEL_PAGESIZE; did you mean FIRESTEEL_PAGE_SIZE?",
        ),
        (
            {"environ": {"FIRESTEEL_CONFG": "x.toml"}},
            "unknown variable FIRESTEEL_CONFG; did you mean FIRESTEEL_CONFIG?",
        ),
    ],
)
def test_unknown_setting_or_variable_names_the_nearest(given, message):
    with pytest.raises(ConfigError) as caught:
        resolve(**{"environ": {}, **given})
    assert str(caught.value) == message


def test_unknown_key_of_a_file_names_the_file_and_the_nearest(tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text("max_num_seq = 3\n")
    with pytest.raises(ConfigError) as caught:
        resolve(environ={}, file=file)
    assert str(caught.value) == f"unknown key in {file}: max_num_seq; did you mean max_num_seqs?"


def test_bad_value_is_refused_from_environment_and_file_alike(tmp_path):
    with pytest.raises(
        ConfigError, match=r"page_size = 24 \(environment FIRESTEEL_PAGE_SIZE\): must be a power of"
    ):
        resolve(environ={"FIRESTEEL_PAGE_SIZE": "24"})
    file = tmp_path / "firesteel.toml"
    file.write_text("page_size = 24\n")
    with pytest.raises(ConfigError, match=r"page_size = 24 \(file .*\): must be a power of two"):
        resolve(environ={}, file=file)


def test_bad_variable_that_a_flag_overrides_is_not_read():
    assert resolve({"page_size": 16}, environ={"FIRESTEEL_PAGE_SIZE": "24"}).config.batch.page_size == 16


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True),
        ("true", True),
        ("YES", True),
        ("On", True),
        ("0", False),
        ("False", False),
        ("no", False),
        ("off", False),
    ],
)
def test_variable_of_a_switch_accepts_on_and_off(text, value):
    assert resolve(environ={"FIRESTEEL_SINKS": text}).config.kernels.sinks is value


@pytest.mark.parametrize(
    ("variable", "text", "accepted"),
    [
        ("FIRESTEEL_SINKS", "maybe", "on or off"),
        ("FIRESTEEL_SINKS", "", "on or off"),
        ("FIRESTEEL_PAGE_SIZE", "16.0", "a whole number"),
        ("FIRESTEEL_PAGE_SIZE", "", "a whole number"),
        ("FIRESTEEL_MEMORY_RESERVE_GIB", "much", "a number"),
    ],
)
def test_text_of_the_wrong_type_is_refused(variable, text, accepted):
    with pytest.raises(ConfigError) as caught:
        resolve(environ={variable: text})
    assert str(caught.value) == f"{variable}={text!r}: must be {accepted}"


def test_whole_number_is_accepted_for_a_float(tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text("memory_reserve_gib = 3\n")
    reserve = resolve(environ={}, file=file).config.model.memory_reserve_gib
    assert reserve == 3.0 and type(reserve) is float
    assert resolve(environ={"FIRESTEEL_MEMORY_RESERVE_GIB": "3"}).config.model.memory_reserve_gib == 3.0


@pytest.mark.parametrize("name", REMOVED)
def test_removed_setting_is_dropped_with_a_warning_that_names_it(name, tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text(f"{name} = 1\n")
    variable = f"FIRESTEEL_{name.upper()}"
    for given, shown in (
        ({"flags": {name: "1"}}, f"setting {name} is ignored"),
        ({"environ": {variable: "x"}}, f"variable {variable} is ignored"),
        ({"file": file}, f"key in {file}: {name} is ignored"),
    ):
        with pytest.warns(RemovedSettingWarning, match=re.escape(f"{shown}: it was removed")) as caught:
            assert resolve(**{"environ": {}, **given}) == resolve(environ={})
        assert len(caught) == 1 and REMOVED[name] in str(caught[0].message)


def test_removed_settings_are_not_declared():
    assert not REMOVED.keys() & all_settings().keys()


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*none\.toml: No such file"):
        resolve(environ={}, file=tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"page_size 16", b"page_size = 16\xff"])
def test_file_that_is_not_toml_is_an_error(content, tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        resolve(environ={}, file=file)
