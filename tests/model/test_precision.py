"""The layers held in MXFP4: what config.json says, what the user asks for, and contradictions."""

import itertools

import pytest

from firesteel.model.fields import SpecError
from firesteel.model.precision import DENSE_LAYERS, held_layers, read_layers, write_quantization

EVERY_CHOICE = [
    chosen for count in range(len(DENSE_LAYERS) + 1) for chosen in itertools.combinations(DENSE_LAYERS, count)
]


@pytest.mark.parametrize("layers", EVERY_CHOICE, ids=str)
def test_every_choice_reads_back(layers):
    assert read_layers(write_quantization(layers)) == layers


def test_experts_only_is_written_as_published():
    assert write_quantization(()) == {
        "quant_method": "mxfp4",
        "modules_to_not_convert": [
            "model.layers.*.self_attn",
            "model.layers.*.mlp.router",
            "model.embed_tokens",
            "lm_head",
        ],
    }


@pytest.mark.parametrize(
    ("layers", "attention", "head"),
    [
        (("qkv",), ["o_proj"], ["lm_head"]),
        (("o",), ["q_proj", "k_proj", "v_proj"], ["lm_head"]),
        (("qkv", "o", "lm_head"), [], []),
    ],
    ids=str,
)
def test_converted_layers_leave_the_list_of_modules_not_to_convert(layers, attention, head):
    kept = [f"model.layers.*.self_attn.{name}" for name in attention]
    written = write_quantization(layers)
    assert written["modules_to_not_convert"] == [*kept, "model.layers.*.mlp.router", "model.embed_tokens", *head]
    assert written["mxfp4_layers"] == ["moe", *layers]


@pytest.mark.parametrize("layers", ["qkv", ["qkv"], ["moe", "router"], {"moe": 1}, None, [3]], ids=str)
def test_mxfp4_layers_must_be_a_list_that_includes_the_experts(layers):
    with pytest.raises(SpecError, match=r"quantization_config\.mxfp4_layers must list moe and some of qkv, o, lm"):
        read_layers({"quant_method": "mxfp4", "mxfp4_layers": layers})


@pytest.mark.parametrize(
    ("stored", "asked", "held"),
    [
        ((), (), ()),
        (("o",), (), ("o",)),
        ((), ("moe",), ()),
        ((), ("moe", "lm_head", "qkv"), ("qkv", "lm_head")),
        (("o",), ("qkv", "o"), ("qkv", "o")),
    ],
    ids=str,
)
def test_default_is_as_stored_and_more_layers_may_be_requested(stored, asked, held):
    assert held_layers(stored, asked) == held


@pytest.mark.parametrize("asked", [("moe",), ("o",), ("moe", "lm_head")], ids=str)
def test_fewer_layers_than_the_checkpoint_holds_is_an_error_with_three_cures(asked):
    with pytest.raises(SpecError, match=r"holds qkv in MXFP4 already") as caught:
        held_layers(("qkv",), asked)
    both = ",".join(name for name in DENSE_LAYERS if name in ("qkv", *asked))
    assert f"leave --mxfp4-layers empty, use --mxfp4-layers {both}, or load" in str(caught.value)


def test_unknown_layer_is_named():
    with pytest.raises(
        SpecError, match=r"'ffn' is not a layer that can be held in MXFP4; choose from moe, qkv, o, lm_head"
    ):
        held_layers((), ("qkv", "ffn"))
