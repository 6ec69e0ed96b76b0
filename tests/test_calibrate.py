"""Scales from a text: the largest stored values, and powers of two that leave a margin above them."""

import math

import pytest
import torch

from firesteel import LLM, UserError
from firesteel.calibrate import MARGIN, Calibration, calibrate, choose_scale, read_prompts
from firesteel.engine.cache.kv_scales import write_scales
from firesteel.exam import TEXT, read_items

PROMPTS = [list(range(97, 117)), [5, 6, 7], list(range(200, 20, -1))]


@pytest.mark.parametrize(
    ("largest", "scale"), [(224.0, 1.0), (224.1, 2.0), (448.0, 2.0), (112.0, 0.5), (7.0, 1 / 32), (1e6, 8192.0)]
)
def test_scale_is_the_smallest_power_of_two_with_the_margin_inside_the_range(largest, scale):
    assert choose_scale(largest) == scale


def test_every_scale_divides_exactly_and_leaves_the_margin():
    for largest in torch.rand(500, generator=torch.Generator().manual_seed(1)).mul(20).sub(10).exp().tolist():
        scale = choose_scale(largest)
        assert math.frexp(scale)[0] == 0.5 and largest * MARGIN / scale <= 448 < largest * MARGIN / (scale / 2)


def test_layer_that_stores_only_zeros_is_not_scaled():
    assert choose_scale(0.0) == 1.0
    assert choose_scale(1e-45) == 2.0**-126


@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_value_that_is_not_finite_is_an_error_that_names_the_layer(bad):
    with pytest.raises(UserError, match=f"layer 1: its largest key is {bad}"):
        _ = Calibration(num_tokens=1, largest_keys=(1.0, bad), largest_values=(1.0, 1.0)).scales
    with pytest.raises(UserError, match=f"layer 0: its largest value is {bad}"):
        _ = Calibration(num_tokens=1, largest_keys=(1.0, 1.0), largest_values=(bad, 1.0)).scales


def largest_by_hand(llm):
    """Returns the largest key and value per layer over PROMPTS, from the arguments of the op, prompt by prompt."""
    op, largest, calls = llm.kernels.rope_kv_write.op, torch.zeros(llm.spec.num_layers, 2), []

    def spy(operands):
        cos, sin = (part[:, None] for part in operands.table[operands.positions].chunk(2, dim=-1))
        first, second = operands.k.chunk(2, dim=-1)
        turned = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        layer = len(calls) % llm.spec.num_layers
        calls.append(layer)
        largest[layer] = torch.maximum(largest[layer], torch.stack((turned.abs().max(), operands.v.abs().max())))
        return op.reference(operands)

    llm.kernels.rope_kv_write = spy
    for prompt in PROMPTS:
        llm.logits(prompt)
    return largest


def test_largest_values_are_per_layer_over_all_prompts(open_llm):
    calibration, seen = calibrate(open_llm(), PROMPTS), largest_by_hand(open_llm())
    assert calibration.num_tokens == sum(map(len, PROMPTS))
    torch.testing.assert_close(torch.tensor([calibration.largest_keys, calibration.largest_values]).T, seen)
    assert calibration.scales.keys == tuple(map(choose_scale, calibration.largest_keys))


def test_model_is_unchanged_afterwards_and_progress_is_reported(open_llm):
    llm, told = open_llm(), []
    op = llm.kernels.rope_kv_write
    calibrate(llm, PROMPTS, progress=lambda done, total: told.append((done, total)))
    assert llm.kernels.rope_kv_write is op and told[-1] == (3, 3)


@pytest.mark.parametrize("column", [-1, 4 * 32], ids=["a value", "a key"])
def test_model_is_unchanged_after_an_error(open_llm, column):
    llm = open_llm()
    op = llm.kernels.rope_kv_write
    llm.model.weights.layers[1].qkv_bias[column] = float("inf")
    with pytest.raises(UserError, match="hold NaN or infinity"):
        calibrate(llm, PROMPTS)
    assert llm.kernels.rope_kv_write is op


def test_fp8_pages_are_refused(open_llm):
    with pytest.raises(UserError, match="--kv-dtype auto"):
        calibrate(open_llm(kv_dtype="fp8"), PROMPTS)


def test_text_is_split_into_pieces_that_fit(llm, tmp_path):
    path = tmp_path / "text"
    path.write_text("ab" * 300, encoding="utf-8")
    pieces = read_prompts(llm, path)
    assert [len(piece) for piece in pieces] == [255, 255, 90]
    assert llm.tokenizer.decode([token for piece in pieces for token in piece]) == "ab" * 300


def test_text_is_required_except_for_kindling(llm):
    with pytest.raises(UserError, match="--text FILE is required"):
        read_prompts(llm, None)
    assert len(read_prompts(LLM(device="cpu"), None)) == len(read_items(TEXT))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "cannot read the text .*No such file"), (b"", "is empty"), (b"\xff\xfe", "is not UTF-8 text")],
)
def test_texts_that_cannot_be_used_are_errors(llm, tmp_path, content, complaint):
    path = tmp_path / "text"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=complaint):
        read_prompts(llm, path)


def test_scales_prevent_clipping_by_fp8(open_llm, tmp_path):
    """Values up to 3000 are clipped without calibration, and not with it."""

    def open_large(**settings):
        llm = open_llm(**settings)
        llm.model.weights.layers[1].qkv_bias[-64:] *= 3000 / llm.model.weights.layers[1].qkv_bias[-64:].abs().max()
        return llm

    exact = open_large()
    path = tmp_path / "scales.json"
    calibration: Calibration = calibrate(exact, PROMPTS)
    write_scales(path, calibration.scales)
    assert max(calibration.largest_values) > 2000
    errors, clipped = [], []
    for scales in ("", str(path)):
        llm = open_large(kv_dtype="fp8", kv_scales=scales)
        wanted = exact.logits(PROMPTS[2])
        errors.append(float((llm.logits(PROMPTS[2]) - wanted).norm() / wanted.norm()))
        clipped.append(llm.engine.statistics().saturated_values)
    assert clipped[0] > 0 == clipped[1] and errors[1] < errors[0] / 2
