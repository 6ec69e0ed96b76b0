"""Our settings inside vLLM: what takes effect, what does not, and graphs, which vLLM decides on too."""

from types import SimpleNamespace

import pytest

from firesteel.device.catalogue import find_listed_gpu
from firesteel.engine.load import choose_kernels
from firesteel.errors import KernelError, UserError
from firesteel.vllm_plugin.options.our_settings import find_config


def new_config(has_graphs=True):
    mode = SimpleNamespace(has_full_cudagraphs=lambda: has_graphs)
    return SimpleNamespace(compilation_config=SimpleNamespace(cudagraph_mode=mode))


@pytest.mark.parametrize(
    ("has_graphs", "environ", "expected"),
    [(True, {}, True), (False, {}, False), (True, {"FIRESTEEL_CUDA_GRAPHS": "off"}, False)],
)
def test_graphs_are_on_if_both_vllm_and_we_want_them(has_graphs, environ, expected):
    """With --enforce-eager of vLLM, prompts are not captured either, and attention that cannot be is accepted."""
    config = find_config(new_config(has_graphs), is_first=True, environ=environ)
    assert config.kernels.cuda_graphs is expected


def test_settings_that_the_plugin_does_not_read_are_named_by_the_first_rank(caplog):
    environ = {"FIRESTEEL_PAGE_SIZE": "32", "FIRESTEEL_KV_DTYPE": "fp8", "FIRESTEEL_MAX_NUM_SEQS": "4"}
    config = find_config(new_config(), is_first=False, environ=environ)
    assert not caplog.messages and config.cache.kv_dtype == "fp8"
    find_config(new_config(), is_first=True, environ=environ)
    [message] = caplog.messages
    assert message.endswith(
        "no effect inside vLLM, which has flags of its own: FIRESTEEL_PAGE_SIZE, FIRESTEEL_MAX_NUM_SEQS"
    )


def test_settings_of_drafts_are_named_apart_as_no_flag_of_vllm_helps(caplog):
    """vLLM's own speculation is refused, so that its flags must not be advised."""
    find_config(new_config(), is_first=True, environ={"FIRESTEEL_SPECULATE": "ngram", "FIRESTEEL_PORT": "8001"})
    others, drafting = caplog.messages
    assert others.endswith("flags of its own: FIRESTEEL_PORT")
    assert drafting.endswith("nothing is drafted inside vLLM: FIRESTEEL_SPECULATE")


def test_settings_in_a_file_are_named_too(tmp_path, caplog):
    file = tmp_path / "settings.toml"
    file.write_text('page_size = 32\nactivation = "mxfp8"\n', encoding="utf-8")
    config = find_config(new_config(), is_first=True, environ={"FIRESTEEL_CONFIG": str(file)})
    assert caplog.messages[0].endswith(": FIRESTEEL_PAGE_SIZE") and config.kernels.activation == "mxfp8"


@pytest.mark.parametrize(
    ("environ", "origin"),
    [
        ({"FIRESTEEL_PREFILL_ACTIVATION": "mxfp8"}, "environment FIRESTEEL_PREFILL_ACTIVATION"),
        ({"FIRESTEEL_PRESET": "spark"}, "preset spark"),
    ],
)
def test_prompts_rounded_otherwise_than_decoded_tokens_are_refused_with_the_origin(environ, origin):
    with pytest.raises(UserError, match=rf"prefill_activation = mxfp8 \({origin}\): .*ACTIVATION=auto"):
        find_config(new_config(), is_first=True, environ=environ)


def test_the_cure_of_that_refusal_holds():
    environ = {"FIRESTEEL_PRESET": "spark", "FIRESTEEL_PREFILL_ACTIVATION": "auto"}
    assert find_config(new_config(), is_first=True, environ=environ).kernels.mxfp4_layers == "qkv,o,lm_head"


@pytest.mark.parametrize(("installed", "is_allowed"), [("3.8.0", True), ("3.7.1", False)])
def test_activations_that_a_gb10_multiplies_natively_need_the_triton_of_vllm_0_33(
    installed, is_allowed, monkeypatch
):
    """Older versions would multiply them in bf16 without saying so."""
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton, "__version__", installed)
    config = find_config(new_config(), is_first=True, environ={"FIRESTEEL_ACTIVATION": "mxfp8"})
    if is_allowed:
        assert choose_kernels(find_listed_gpu("gb10"), config).table()
    else:
        with pytest.raises(KernelError, match=r"needs Triton >= 3\.8"):
            choose_kernels(find_listed_gpu("gb10"), config)
