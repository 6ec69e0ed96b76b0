"""Formats and sizes of a served model. Lines of llama.cpp are synthetic, in the wording of its sources."""

from types import SimpleNamespace

import pytest

from firesteel.lab.client.api import Api
from firesteel.lab.levels.formats import find_formats, find_served
from firesteel.lab.path.engine_rules import load_rules
from firesteel.lab.path.evidence import PathEvidence
from firesteel.lab.path.expectation import Expectations
from firesteel.lab.path.judge import judge_slots
from firesteel.lab.path.ledger import ServerLedger
from firesteel.lab.servers.target import Target
from firesteel.lab.spec import LabSpec
from tests.lab.path.evidence_lines import CONFIG, DENSE_MARLIN, LOGS

PLAIN = {"mxfp4_layers": "", "activation": "bf16", "kv": "bfloat16"}
GGUF = """
llama_model_loader: - type  f32:  433 tensors
llama_model_loader: - type {dense}:  146 tensors
llama_model_loader: - type mxfp4:  108 tensors
llama_kv_cache: size =   36.00 MiB (  1024 cells,  18 layers), K ({kv}):   18.00 MiB, V ({kv}):   18.00 MiB
"""


@pytest.fixture
def formats(tmp_path):
    """formats("vllm", log="..."): the formats and the served model of an engine that printed this."""

    def find(kind, *flags, log="", model="gpt-oss-120b", is_ours=True, ledger=None, **settings):
        path = tmp_path / "server.log"
        path.write_text(log)
        server = SimpleNamespace(log=path) if is_ours else None
        api = Api.of("http://127.0.0.1:1")
        target = Target(api=api, kind=kind, folder=tmp_path, model=model, server=server)
        rules = load_rules(kind)
        slots = rules and judge_slots(PathEvidence(log=log.splitlines()), rules, Expectations())
        found = find_formats(target, LabSpec(flags=flags, **settings), ledger, slots)
        return found, find_served(model, found)

    return find


def test_bytes_follow_the_formats_that_the_engine_holds_not_its_flags(formats):
    """FIRESTEEL_MXFP4_LAYERS, which is not a flag, was once counted as BF16."""
    _, plain = formats("firesteel", ledger=ServerLedger(formats=PLAIN))
    assert plain.spec.mxfp4_layers == () and plain.kv == "bf16"
    held = {"mxfp4_layers": "qkv,o,lm_head", "kv": "float8_e4m3fn"}
    _, served = formats("firesteel", "--kv-dtype", "auto", ledger=ServerLedger(formats=held))
    assert served.spec.mxfp4_layers == ("qkv", "o", "lm_head") and served.kv == "fp8"


@pytest.mark.parametrize(
    ("kind", "flags", "kv"),
    [
        ("vllm", (), "bf16"),
        ("vllm", ("--quantization", "mxfp4"), "bf16"),
        ("sglang", ("--kv-cache-dtype", "fp8_e5m2"), "fp8"),
        ("vllm", ("--quantization=awq",), None),
        ("vllm+firesteel", (), "bf16"),
        ("llamacpp", (), None),
        ("other", (), None),
    ],
)
def test_bytes_of_other_engines_are_known_from_their_flags(formats, kind, flags, kv):
    _, served = formats(kind, *flags)
    assert (served and served.kv) == kv and (served is None or served.spec.mxfp4_layers == ())
    assert formats(kind, is_ours=False) == ({}, None)


def test_log_of_the_fork_says_which_layers_are_mxfp4(formats):
    log = (LOGS / "vllm-0.14-gb10.log").read_text()
    found, served = formats("vllm", log=log)
    assert served.spec.mxfp4_layers == ("qkv", "o", "lm_head") and served.kv == "fp8"
    assert found["source"] == "the checkpoint, flags and log"


def test_dense_layers_that_were_quantised_while_loading_are_unknown(formats):
    """Their bytes were counted as BF16."""
    assert formats("vllm", log=DENSE_MARLIN)[1] is None
    assert formats("vllm", "--mxfp4-layers", "moe,qkv", log=DENSE_MARLIN)[1].spec.mxfp4_layers == ("qkv",)


def test_cache_format_in_the_log_counts_more_than_the_default(formats):
    log = CONFIG.format(eager=True, kv="fp8_e4m3", device="cuda")
    assert formats("vllm", log=log)[1].kv == "fp8"


@pytest.mark.parametrize(("dense", "kv", "expected"), [("q8_0", "f16", "bf16"), ("f16", "q8_0", "q8_0")])
def test_log_of_llamacpp_says_its_formats(formats, dense, kv, expected):
    log, name = GGUF.format(dense=dense, kv=kv), "models/gpt-oss-20b-mxfp4-00001-of-00002.gguf"
    _, served = formats("llamacpp", log=log, model=name)
    assert (served.moe, served.dense, served.kv) == ("mxfp4", {"f16": "bf16"}.get(dense, dense), expected)
    assert served.spec.num_experts == 32


def test_two_formats_of_dense_layers_are_unknown(formats):
    log = GGUF.format(dense="q8_0", kv="f16") + "llama_model_loader: - type  q5_1:   3 tensors"
    assert formats("llamacpp", log=log)[1] is None


def test_given_formats_make_the_bytes_of_any_server_known(formats):
    found, served = formats("other", is_ours=False, formats="moe=mxfp4,dense=q8_0,kv=fp8")
    assert (served.moe, served.dense, served.kv) == ("mxfp4", "q8_0", "fp8") and found["source"] == "--formats"
    found, served = formats("vllm", formats="dense=mxfp4")
    assert (served.dense, served.kv) == ("mxfp4", "bf16")
    assert found["source"] == "--formats, the rest by the checkpoint, flags and log"


@pytest.mark.parametrize("setting", [("MXFP4_LAYERS", "all"), ("KV_DTYPE", "fp8")], ids=str)
def test_our_settings_make_the_bytes_of_the_plugin_unknown_and_not_those_of_vllm(formats, setting, monkeypatch):
    monkeypatch.setenv(f"FIRESTEEL_{setting[0]}", setting[1])
    for kind, is_known in (("vllm+firesteel", False), ("vllm", True)):
        assert bool(formats(kind)[0]) == is_known


@pytest.mark.parametrize("stated", [{}, {"kv": "bfloat16"}])
def test_unstated_formats_mean_no_bytes(stated):
    assert find_served("kindling", stated) is None


def test_sizes_of_public_models_are_known_by_name_and_not_those_of_similar_ones():
    assert find_served("openai/gpt-oss-120b", PLAIN).spec.num_experts == 128
    assert find_served("ggml-org/gpt-oss-20b-GGUF", PLAIN).spec.num_experts == 32
    for name in ("some/other", "gpt-oss-120b-pruned", "gpt-oss-20b-eagle3"):
        assert find_served(name, PLAIN) is None
