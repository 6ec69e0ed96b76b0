"""Settings: precedence, origins, checks and names."""

import dataclasses
import os
from pathlib import Path

import pytest

from firesteel.config import (
    Config,
    ConfigError,
    child_environment,
    find_user_cache,
    is_secret,
    knobs,
    parse_layers,
    resolve,
    shown_environment,
    told_environment,
)

EVERY_KNOB = [pytest.param(knob, id=name) for name, knob in knobs().items()]
# knob -> a value that is not the default, and text an environment would hold for another one
OTHER_VALUES = {
    "model": ("folder", "elsewhere", "elsewhere"),
    "device": ("cpu", "cuda:1", "cuda:1"),
    "max_model_len": (100, "200", 200),
    "load_workers": (1, "4", 4),
    "memory_reserve_gib": (0.0, "2.5", 2.5),
    "kernels": ("route=reference", "linear=reference", "linear=reference"),
    "activation": ("mxfp8", "mxfp4", "mxfp4"),
    "tile": ("64x128", "16x32", "16x32"),
    "tiles_file": ("here.json", "there.json", "there.json"),
    "require": ("moe=triton", "linear=triton:gemm@bf16", "linear=triton:gemm@bf16"),
    "mxfp4_layers": ("qkv", "all", "all"),
    "sinks": (False, "off", False),
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
    "capture_at_start": (8, "4", 4),
    "prefix_caching": (False, "off", False),
    "engine_restarts": (0, "5", 5),
    "engine_restart_window_s": (1.5, "60", 60.0),
    "engine_hang_s": (0.0, "30", 30.0),
    "crash_dir": ("here", "there", "there"),
    "gpu_memory_utilization": (0.9, "0.5", 0.5),
    "host": ("0.0.0.0", "::1", "::1"),
    "port": (0, "9000", 9000),
    "api_key": ("secret", "other", "other"),
    "allowed_origins": ("*", "http://a:1,https://b", "http://a:1,https://b"),
    "served_model_name": ("mine", "mine,yours", "mine,yours"),
    "max_waiting": (0, "3", 3),
    "max_connections": (1, "3", 3),
    "max_body_mib": (0.5, "2", 2.0),
    "body_timeout_s": (1.0, "2.5", 2.5),
    "request_timeout_s": (0.0, "60", 60.0),
    "slow_client_s": (0.0, "2.5", 2.5),
    "drain_s": (0.0, "2.5", 2.5),
    "response_store_mib": (8.0, "8", 8.0),
    "prompt_date": ("today", "2026-01-31", "2026-01-31"),
    "log_format": ("json", "json", "json"),
    "log_prompts": (True, "on", True),
}
BAD_VALUES = {
    "model": [3, True],
    "device": ["gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:²", "cpu:0", "auto:", "cpu\n", ""],
    "max_model_len": [-1, 1.0, "100", True],
    "load_workers": [0, 1.5],
    "memory_reserve_gib": [-0.1, float("nan"), "1", True],
    "kernels": ["rms_norm", "a=b=c", "route=reference,linear", 1],
    "activation": ["fp8", "MXFP8", "", "bf16,mxfp8", 8],
    "tile": ["64", "64x", "64x96", "8x64", "0x16", "64x128x64", "64 x 128", "", 64],
    "require": ["moe", "moe=", "=triton", "moe=triton@", "moe=triton,linear", "moe=a=b", True],
    "mxfp4_layers": ["router", "qkv,ffn", "all,qkv", "qkv;o", "QKV", 1],
    "sinks": [1, "on", 0],
    "cuda_graphs": [1, "on"],
    "dependent_launch": [0, "off"],
    "kernel_cache_dir": [3, True],
    "tiles_file": [3, True],
    "page_size": [0, -16, 24, 63, 16.0],
    "max_num_seqs": [0, -3, True],
    "max_num_batched_tokens": [-1, "7"],
    "kv_cache_gib": [-0.5, "1", True],
    "kv_dtype": ["e4m3", "FP8", "", 8],
    "kv_scales": [1, True],
    "run_ahead": [1, "on"],
    "capture_at_start": [-1, 1.0, True],
    "prefix_caching": [1, "on"],
    "engine_restarts": [-1, 1.0, True],
    "engine_restart_window_s": [-1.0, "60", float("nan")],
    "engine_hang_s": [-1.0, "60", float("nan")],
    "crash_dir": [3, True],
    "gpu_memory_utilization": [-0.1, 1.1, 90.0, "0.9"],
    "host": [1, True],
    "port": [-1, 65536, "80", 80.0],
    "api_key": [1, True],
    "allowed_origins": ["localhost:3000", "http://a/path", "http://u@a", 1],
    "served_model_name": [1],
    "max_waiting": [-1, 1.0],
    "max_connections": [0, "4"],
    "max_body_mib": [-1.0, "4"],
    "body_timeout_s": [-1.0, "4"],
    "request_timeout_s": [-1.0, "4"],
    "slow_client_s": [-1.0, "4"],
    "drain_s": [-1.0, "4"],
    "response_store_mib": [-1.0, "many"],
    "prompt_date": ["yesterday", "2026-02-30", "31.1.2026", "", 2026],
    "log_format": ["xml", "", 1],
    "log_prompts": [1, "on"],
}
GOOD_VALUES = {
    "activation": ["bf16", "mxfp8", "mxfp4"],
    "tile": ["auto", "16x16", "64x128", "256x64"],
    "require": ["", "moe=triton", "moe_matmul=triton:gemm@native-fp4", "moe=triton:gemm mxfp8, linear=reference"],
    "mxfp4_layers": ["", "moe", "qkv", "lm_head,o,qkv", "qkv, o", "all"],
}
GOOD_DEVICES = ["auto", "cpu", "cuda", "cuda:0", "cuda:12"]


def value_of(settings, name):
    return getattr(getattr(settings.config, knobs()[name].section), name)


def toml(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def test_tables_of_this_file_cover_every_knob():
    assert set(OTHER_VALUES) == set(BAD_VALUES) == set(knobs())


@pytest.mark.parametrize("knob", EVERY_KNOB)
def test_default_of_each_knob_is_its_declared_one(knob):
    settings = resolve(environ={})
    assert value_of(settings, knob.name) == knob.default
    assert settings.origins[knob.name] == "default"


@pytest.mark.parametrize("knob", EVERY_KNOB)
def test_flag_beats_environment_beats_file_beats_default(knob, tmp_path):
    other, text, parsed = OTHER_VALUES[knob.name]
    file = tmp_path / "firesteel.toml"
    file.write_text(f"{knob.name} = {toml(other)}\n")
    everything = {"flags": {knob.name: knob.default}, "environ": {knob.env: text}, "file": file}
    by_flag = resolve(**everything)
    by_environment = resolve(**{**everything, "flags": {knob.name: None}})
    by_file = resolve(environ={}, file=file)
    assert value_of(by_flag, knob.name) == knob.default
    assert by_flag.origins[knob.name] == "flag"
    assert value_of(by_environment, knob.name) == parsed
    assert by_environment.origins[knob.name] == f"environment {knob.env}"
    assert value_of(by_file, knob.name) == other != knob.default
    assert by_file.origins[knob.name] == f"file {file}"


def test_each_knob_is_set_on_its_own(tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text("load_workers = 2\n")
    settings = resolve({"page_size": 16}, environ={"FIRESTEEL_SINKS": "no"}, file=file)
    assert (settings.config.batch.page_size, settings.config.kernels.sinks) == (16, False)
    assert settings.config.model.load_workers == 2
    origins = {name: origin for name, origin in settings.origins.items() if origin != "default"}
    assert origins == {
        "page_size": "flag", "sinks": "environment FIRESTEEL_SINKS", "load_workers": f"file {file}",
    }  # fmt: skip


def test_variable_names_the_file(tmp_path):
    file = tmp_path / "settings.toml"
    file.write_text("page_size = 32\n")
    settings = resolve(environ={"FIRESTEEL_CONFIG": str(file)})
    assert settings.config.batch.page_size == 32
    assert settings.origins["page_size"] == f"file {file}"


def test_given_file_is_read_instead_of_the_one_the_variable_names(tmp_path):
    file = tmp_path / "given.toml"
    file.write_text("page_size = 32\n")
    settings = resolve(environ={"FIRESTEEL_CONFIG": str(tmp_path / "missing.toml")}, file=file)
    assert settings.config.batch.page_size == 32


def test_process_environment_is_what_is_read_when_none_is_given(monkeypatch):
    monkeypatch.setenv("FIRESTEEL_PAGE_SIZE", "32")
    assert resolve().config.batch.page_size == 32


def test_foreign_variables_are_ignored():
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


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, bad in BAD_VALUES.items() for value in bad])
def test_bad_value_is_refused_with_name_value_and_origin(name, value):
    with pytest.raises(ConfigError) as caught:
        resolve({name: value}, environ={})
    assert str(caught.value).startswith(f"{name} = {value!r} (flag): ")


@pytest.mark.parametrize("value", GOOD_DEVICES)
def test_device_takes(value):
    assert resolve({"device": value}, environ={}).config.model.device == value


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, good in GOOD_VALUES.items() for value in good])
def test_good_value_is_kept_as_it_was_given(name, value):
    assert value_of(resolve({name: value}, environ={}), name) == value


def test_bad_value_of_a_gate_says_what_it_wants():
    for name, value, wants in (
        ("activation", "fp8", "must be one of bf16, mxfp8, mxfp4"),
        ("tile", "64", "must be auto or ROWSxCOLUMNS, both powers of two from 16 on, as 64x128"),
        ("require", "moe", "wants OP=IMPLEMENTATION[:VARIANT][@VERDICT] joined by commas, not 'moe'"),
        ("mxfp4_layers", "qkv,ffn", "wants some of moe, qkv, o, lm_head, or all, joined by commas, not 'ffn'"),
    ):
        with pytest.raises(ConfigError) as caught:
            resolve({name: value}, environ={})
        assert str(caught.value) == f"{name} = {value!r} (flag): {wants}"


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("", ()), ("moe", ("moe",)), ("lm_head, qkv", ("qkv", "lm_head")), ("qkv,qkv", ("qkv",)),
        ("all", ("moe", "qkv", "o", "lm_head")), ("o,x", ("o", "x")),
    ],
)  # fmt: skip
def test_layers_come_in_our_order_whatever_the_users(text, layers):
    assert parse_layers(text) == layers


def test_bad_value_is_refused_from_environment_and_file_alike(tmp_path):
    with pytest.raises(
        ConfigError, match=r"page_size = 24 \(environment FIRESTEEL_PAGE_SIZE\): must be a power of"
    ):
        resolve(environ={"FIRESTEEL_PAGE_SIZE": "24"})
    file = tmp_path / "firesteel.toml"
    file.write_text("page_size = 24\n")
    with pytest.raises(ConfigError, match=r"page_size = 24 \(file .*\): must be a power of two"):
        resolve(environ={}, file=file)


def test_overruled_bad_value_of_an_environment_does_no_harm():
    assert resolve({"page_size": 16}, environ={"FIRESTEEL_PAGE_SIZE": "24"}).config.batch.page_size == 16


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", True), ("true", True), ("YES", True), ("On", True), ("0", False), ("False", False), ("no", False),
        ("off", False),
    ],
)  # fmt: skip
def test_environment_says_on_or_off(text, value):
    assert resolve(environ={"FIRESTEEL_SINKS": text}).config.kernels.sinks is value


@pytest.mark.parametrize(
    ("variable", "text", "want"),
    [
        ("FIRESTEEL_SINKS", "maybe", "on or off"),
        ("FIRESTEEL_SINKS", "", "on or off"),
        ("FIRESTEEL_PAGE_SIZE", "16.0", "int"),
        ("FIRESTEEL_PAGE_SIZE", "", "int"),
        ("FIRESTEEL_MEMORY_RESERVE_GIB", "much", "float"),
    ],
)
def test_text_of_the_wrong_type_is_refused(variable, text, want):
    with pytest.raises(ConfigError) as caught:
        resolve(environ={variable: text})
    assert str(caught.value) == f"{variable}={text!r}: wants {want}"


def test_whole_number_serves_as_a_float(tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_text("memory_reserve_gib = 3\n")
    reserve = resolve(environ={}, file=file).config.model.memory_reserve_gib
    assert reserve == 3.0 and type(reserve) is float
    assert resolve(environ={"FIRESTEEL_MEMORY_RESERVE_GIB": "3"}).config.model.memory_reserve_gib == 3.0


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read the configuration file .*none\.toml: No such file"):
        resolve(environ={}, file=tmp_path / "none.toml")


@pytest.mark.parametrize("content", [b"page_size 16", b"page_size = 16\xff"])
def test_file_that_is_not_toml_is_an_error(content, tmp_path):
    file = tmp_path / "firesteel.toml"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="is not valid TOML"):
        resolve(environ={}, file=file)


@pytest.mark.parametrize("section", [field.name for field in dataclasses.fields(Config)])
def test_config_is_frozen(section):
    config = Config()
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(config, section, None)
    inner = getattr(config, section)
    for field in dataclasses.fields(inner):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(inner, field.name, None)


def test_knob_names_are_unique_over_sections():
    declared = [
        field.name for section in dataclasses.fields(Config) for field in dataclasses.fields(section.default)
    ]
    assert sorted(declared) == sorted(knobs())


def test_environment_names_are_unique_and_spell_the_knob():
    names = [knob.env for knob in knobs().values()]
    assert len(set(names)) == len(names)
    assert names == [f"FIRESTEEL_{knob.name.upper()}" for knob in knobs().values()]
    assert "FIRESTEEL_CONFIG" not in names


@pytest.mark.parametrize("knob", EVERY_KNOB)
def test_default_passes_its_own_check_and_has_help(knob):
    assert type(knob.default) is knob.type
    assert knob.check is None or knob.check(knob.default) is None
    assert len(knob.help) > 10


@pytest.mark.parametrize(
    ("environ", "folder"),
    [
        ({"XDG_CACHE_HOME": "/caches", "HOME": "/home/one"}, "/caches"),
        ({"HOME": "/home/one"}, "/home/one/.cache"),
        ({"XDG_CACHE_HOME": "", "HOME": "/home/one"}, "/home/one/.cache"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/home/one"}, "/home/one/.cache"),
    ],
)
def test_caches_lie_where_the_xdg_base_directories_say(environ, folder):
    assert find_user_cache(environ) == Path(folder)


def test_a_user_without_a_home_has_no_folder_for_caches(monkeypatch):
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)
    assert find_user_cache({}) is None and find_user_cache({"HOME": "relative"}) is None
    assert find_user_cache({"XDG_CACHE_HOME": "/caches"}) == Path("/caches")


def test_shown_environment_is_ours_without_secrets():
    environ = {
        "FIRESTEEL_PAGE_SIZE": "16", "FIRESTEEL_API_KEY": "abc", "CUDA_VISIBLE_DEVICES": "0", "HF_TOKEN": "def",
        "PATH": "/bin",
    }  # fmt: skip
    assert shown_environment(environ) == {
        "CUDA_VISIBLE_DEVICES": "0", "FIRESTEEL_API_KEY": "(hidden)", "FIRESTEEL_PAGE_SIZE": "16",
    }  # fmt: skip


def test_secrets_are_known_by_their_names():
    for name in ("--api-key", "api_key", "FIRESTEEL_API_KEYS", "password", "client_secret", "--auth-token"):
        assert is_secret(name), name
    for name in ("max_tokens", "--max-num-batched-tokens", "kernels", "keyboard", "FIRESTEEL_CONFIG"):
        assert not is_secret(name), name
    assert [name for name in knobs() if is_secret(name)] == ["api_key"]


def test_environment_of_a_child_is_ours_with_changes(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("FIRESTEEL_PORT", "9")
    found = child_environment({"OMP_NUM_THREADS": "2"}, without=("FIRESTEEL_PORT",))
    assert found["OMP_NUM_THREADS"] == "2" and "FIRESTEEL_PORT" not in found and "PATH" in found


def test_told_environment_is_of_engines_and_without_secrets():
    environ = {
        "VLLM_USE_V1": "1",
        "VLLM_API_KEY": "x",
        "HF_TOKEN": "x",
        "HF_HOME": "/h",
        "EDITOR": "vi",
        "PATH": "/b",
    }
    assert told_environment(environ) == {"HF_HOME": "/h", "PATH": "/b", "VLLM_USE_V1": "1"}
