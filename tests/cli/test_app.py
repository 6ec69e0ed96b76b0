"""Flags, variables, files and errors, in process and as a user starts the program."""

import sys
import warnings

import pytest

from firesteel import UserError
from firesteel.cli import main
from firesteel.cli.app import show_error, with_settings
from firesteel.config import HIDDEN, REMOVED, RemovedSettingWarning, all_settings
from firesteel.errors import EngineFailed

# name -> flag that sets a value, the value; text of a variable, the value; line of a file, the value
SETTINGS = {
    "model": (["--model", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "device": (["--device", "cpu"], "cpu", "cuda:1", "cuda:1", '"cuda"', "cuda"),
    "threads": (["--threads", "5"], 5, "6", 6, "7", 7),
    "preset": (["--preset", "spark"], "spark", "as-shipped", "as-shipped", '"spark"', "spark"),
    "max_model_len": (["--max-model-len", "5"], 5, "6", 6, "7", 7),
    "memory_reserve_gib": (["--memory-reserve-gib", "0.5"], 0.5, "6", 6.0, "7", 7.0),
    "kernels": (["--kernels", "a=b"], "a=b", "c=d", "c=d", '"e=f"', "e=f"),
    "activation": (["--activation", "mxfp8"], "mxfp8", "mxfp4", "mxfp4", '"mxfp8"', "mxfp8"),
    "prefill_activation": (["--prefill-activation", "mxfp8"], "mxfp8", "mxfp4", "mxfp4", '"bf16"', "bf16"),
    "tile": (["--tile", "64x128"], "64x128", "16x32", "16x32", '"32x16"', "32x16"),
    "require": (["--require", "a=b@fp8"], "a=b@fp8", "c=d", "c=d", '"e=f:g"', "e=f:g"),
    "mxfp4_layers": (["--mxfp4-layers", "all"], "all", "qkv,o", "qkv,o", '"moe"', "moe"),
    "sinks": (["--no-sinks"], False, "off", False, "false", False),
    "batch_invariant": (["--batch-invariant"], True, "on", True, "true", True),
    "speculate": (["--speculate", "ngram"], "ngram", "off", "off", '"ngram"', "ngram"),
    "draft_model": (["--draft-model", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "num_speculative_tokens": (["--num-speculative-tokens", "5"], 5, "6", 6, "7", 7),
    "adapt_speculation": (["--no-adapt-speculation"], False, "off", False, "false", False),
    "cuda_graphs": (["--enforce-eager"], False, "off", False, "false", False),
    "dependent_launch": (["--no-dependent-launch"], False, "off", False, "false", False),
    "kernel_cache_dir": (["--kernel-cache-dir", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "tiles_file": (["--tiles-file", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "prepare": (["--prepare"], True, "on", True, "true", True),
    "prefill_graphs": (["--no-prefill-graphs"], False, "off", False, "false", False),
    "max_decode_delay_ms": (["--max-decode-delay-ms", "5"], 5.0, "6", 6.0, "7", 7.0),
    "page_size": (["--page-size", "16"], 16, "32", 32, "128", 128),
    "max_num_seqs": (["--max-num-seqs", "5"], 5, "6", 6, "7", 7),
    "max_num_batched_tokens": (["--max-num-batched-tokens", "5"], 5, "6", 6, "7", 7),
    "kv_cache_gib": (["--kv-cache-gib", "0.5"], 0.5, "6", 6.0, "7", 7.0),
    "kv_dtype": (["--kv-dtype", "fp8"], "fp8", "bf16", "bf16", '"fp8"', "fp8"),
    "kv_scales": (["--kv-scales", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "run_ahead": (["--no-run-ahead"], False, "off", False, "false", False),
    "prefix_caching": (["--no-prefix-caching"], False, "off", False, "false", False),
    "engine_restarts": (["--engine-restarts", "0"], 0, "6", 6, "7", 7),
    "engine_hang_s": (["--engine-hang-s", "0"], 0.0, "6", 6.0, "7", 7.0),
    "schema_timeout_s": (["--schema-timeout-s", "0.5"], 0.5, "6", 6.0, "7", 7.0),
    "schema_memory_mib": (["--schema-memory-mib", "100"], 100.0, "200", 200.0, "300", 300.0),
    "crash_dir": (["--crash-dir", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "gpu_memory_utilization": (["--gpu-memory-utilization", "0.5"], 0.5, "0.6", 0.6, "0.7", 0.7),
    "host": (["--host", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "port": (["--port", "5"], 5, "6", 6, "7", 7),
    "api_key": (["--api-key", "a"], HIDDEN, "b", HIDDEN, '"c"', HIDDEN),
    "api_key_file": (["--api-key-file", "here"], "here", "there", "there", '"elsewhere"', "elsewhere"),
    "share_prefixes": (["--share-prefixes"], True, "on", True, "true", True),
    "allowed_hosts": (["--allowed-hosts", "a,b"], "a,b", "c", "c", '"*"', "*"),
    "allowed_origins": (["--allowed-origins", '["*"]'], '["*"]', "http://b", "http://b", '"http://c"', "http://c"),
    "served_model_name": (["--served-model-name", "a"], "a", "b", "b", '"c,d"', "c,d"),
    "max_waiting": (["--max-waiting", "5"], 5, "6", 6, "7", 7),
    "max_body_mib": (["--max-body-mib", "5"], 5.0, "6", 6.0, "7", 7.0),
    "request_timeout_s": (["--request-timeout-s", "5"], 5.0, "6", 6.0, "7", 7.0),
    "slow_client_s": (["--slow-client-s", "5"], 5.0, "6", 6.0, "7", 7.0),
    "drain_s": (["--drain-s", "5"], 5.0, "6", 6.0, "7", 7.0),
    "response_store_mib": (["--response-store-mib", "5"], 5.0, "6", 6.0, "7", 7.0),
    "prompt_date": (["--prompt-date", "today"], "today", "2026-01-31", "2026-01-31", '"2027-01-31"', "2027-01-31"),
    "log_format": (["--log-format", "json"], "json", "json", "json", '"json"', "json"),
    "log_prompts": (["--log-prompts"], True, "on", True, "true", True),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_env_shows_value_and_origin_of_flag_variable_file_and_default(run, shown, name, tmp_path):
    setting = all_settings()[name]
    flag, by_flag, text, by_variable, line, by_file = SETTINGS[name]
    file = tmp_path / "firesteel.toml"
    file.write_text(f"{name} = {line}\n")
    in_file = {"FIRESTEEL_CONFIG": str(file)}
    in_both = {**in_file, setting.env: text}
    rows = [
        shown(run("env", "--json", *flag, **in_both))[name],
        shown(run("env", "--json", **in_both))[name],
        shown(run("env", "--json", **in_file))[name],
        shown(run("env", "--json"))[name],
    ]
    assert [(row["value"], row["origin"]) for row in rows] == [
        (by_flag, "flag"),
        (by_variable, f"environment {setting.env}"),
        (by_file, f"file {file}"),
        (setting.default, "default"),
    ]


def test_repeated_flag_gives_several_keys():
    given = []
    command = with_settings(lambda settings: given.append(settings), is_server=True)
    nothing = dict.fromkeys(("config", *all_settings(), *REMOVED))
    for keys in (["a", "b"], [""], [], None):
        command(**nothing | {"api_key": keys, "port": 5})
    assert given == [{"api_key": "a\nb", "port": 5}, {"api_key": "", "port": 5}, {"port": 5}, {"port": 5}]


def test_every_setting_is_in_the_tests_above():
    assert set(SETTINGS) == set(all_settings())


def test_flag_overrides_a_switch_of_the_environment(run, shown):
    row = shown(run("env", "--json", "--sinks", FIRESTEEL_SINKS="off"))["sinks"]
    assert (row["value"], row["origin"]) == (True, "flag")


def test_graphs_are_switched_off_by_either_flag(run, shown):
    """--enforce-eager is vLLM's name."""
    for flag, value in (("--enforce-eager", False), ("--no-cuda-graphs", False), ("--cuda-graphs", True)):
        row = shown(run("env", "--json", flag))["cuda_graphs"]
        assert (row["value"], row["origin"]) == (value, "flag"), flag


@pytest.mark.parametrize("command", ["generate", "env"])
def test_help_all_shows_flag_and_default_of_every_setting(run, command):
    """Defaults were once in square brackets, which the help took for markup and left out."""
    text = " ".join(run(command, "--help-all").stdout.split())
    for setting in (
        setting for setting in all_settings().values() if command == "env" or setting.section != "server"
    ):
        default = "none" if setting.default == "" else setting.default
        assert f"--{setting.name.replace('_', '-')} " in text
        assert f"{setting.help} (default: {default})" in text
    assert not any(f"--{name.replace('_', '-')} " in text for name in REMOVED)
    assert "--no-sinks" in text


@pytest.mark.parametrize("name", REMOVED)
def test_flag_of_a_removed_setting_is_accepted_with_a_warning(run, shown, name):
    with pytest.warns(RemovedSettingWarning, match=f"setting {name} is ignored"):
        assert name not in shown(run("env", "--json", f"--{name.replace('_', '-')}", "4"))


def test_entry_point_shows_a_removed_setting_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("FIRESTEEL_LOAD_WORKERS", "4")
    monkeypatch.setattr(sys, "argv", ["firesteel", "env"])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as caught:
        warnings.simplefilter("default")
        main()
    shown = capsys.readouterr().err
    assert caught.value.code == 0 and shown.count("\n") == 1
    assert shown.startswith("warning: variable FIRESTEEL_LOAD_WORKERS is ignored: it was removed")


@pytest.mark.parametrize("command", [["env"], ["generate", "--prompt", "x"]])
def test_unknown_flag_is_an_error_that_names_the_nearest(run, command):
    result = run(*command, "--page-siz", "16")
    assert result.exit_code == 2
    assert "--page-siz" in result.stderr and "--page-size" in result.stderr.replace("--page-siz ", "")


def test_config_flag_names_the_file_and_wins_over_the_variable(run, shown, tmp_path):
    given, other = tmp_path / "given.toml", tmp_path / "other.toml"
    given.write_text("page_size = 16\nport = 5\n")
    other.write_text("page_size = 32\n")
    rows = shown(run("env", "--json", "--config", str(given), "--port", "6", FIRESTEEL_CONFIG=str(other)))
    assert (rows["page_size"]["value"], rows["page_size"]["origin"]) == (16, f"file {given}")
    assert (rows["port"]["value"], rows["port"]["origin"]) == (6, "flag")


def test_unknown_key_of_the_file_is_an_error_with_the_nearest(run, tmp_path):
    (tmp_path / "f.toml").write_text("page_siz = 16\n")
    error = run("generate", "x", "--config", str(tmp_path / "f.toml")).exception
    assert isinstance(error, UserError) and "did you mean page_size?" in str(error)


@pytest.mark.parametrize(("variable", "is_coloured"), [("", True), ("1", False)])
def test_label_of_an_error_is_coloured_unless_the_user_wants_no_colour(monkeypatch, variable, is_coloured):
    given = []
    monkeypatch.setenv("NO_COLOR", variable)
    monkeypatch.setattr("typer.echo", lambda text, err, color: given.append(color))
    show_error("broken")
    assert given == [None if is_coloured else False]  # None: if it is a terminal


def test_flag_of_the_wrong_type_is_an_error(run):
    result = run("env", "--page-size", "many")
    assert result.exit_code == 2 and "--page-size" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "environment", "message"),
    [
        (["env"], {"FIRESTEEL_PAGESIZE": "1"}, "did you mean FIRESTEEL_PAGE_SIZE?"),
        (["env", "--page-size", "24"], {}, "page_size = 24 (flag): must be a power of two"),
        (["generate", "--prompt", "x", "--model", "/gone"], {}, "/gone is not a folder"),
        (
            ["generate", "--prompt", "x", "--max-tokens", "0"],
            {},
            "max_tokens = 0: must be a whole number",
        ),
    ],
)
def test_mistake_of_the_user_is_a_user_error(run, arguments, environment, message):
    result = run(*arguments, **environment)
    assert isinstance(result.exception, UserError)
    assert message in str(result.exception)


def test_entry_point_shows_a_user_error_in_one_line_without_traceback(monkeypatch, capsys, tmp_path):
    """Long messages were once wrapped at 80 columns, brackets vanished as markup, an empty line came first."""
    missing = tmp_path / "[red]" / ("long" * 30)
    asked = ["generate", "--prompt", "x", "--model", str(missing), "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", ["firesteel", *asked])
    with pytest.raises(SystemExit) as caught:
        main()
    shown = capsys.readouterr()
    assert caught.value.code == 2 and shown.out == ""
    assert shown.err.startswith(f"error: {missing} is not a folder") and shown.err.count("\n") == 1


def test_entry_point_shows_a_failed_engine_in_one_line_with_its_own_exit_code(monkeypatch, capsys):
    def fail():
        raise EngineFailed("the engine is not restarted")

    monkeypatch.setattr(sys.modules["firesteel.cli.app"], "app", fail)
    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 1 and capsys.readouterr().err == "error: the engine is not restarted\n"
