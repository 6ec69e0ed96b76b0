"""The figures of docs/spark.md are those of the roofline, and every claim is marked."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from firesteel.defaults import find_defaults
from firesteel.device import GIB
from firesteel.device.catalogue import CATALOGUE
from firesteel.engine.cache.kv_cache import UNIFIED_REQUESTS, find_layout, page_bytes
from firesteel.engine.limits import find_budget
from firesteel.measure.record import Record
from firesteel.measure.roofline.nodes import EXPERT_SHARE, Link, find_link_seconds, predict_nodes
from firesteel.measure.roofline.prompts import STEP_TOKENS, predict_prompts
from firesteel.measure.roofline.roofline import GPUS, StepShape, predict, step_cost
from firesteel.model.spec import PRESETS
from firesteel.model.weights import weight_bytes
from firesteel.spark_report.parts import list_parts

PAGE = (Path(__file__).parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
TEXT = " ".join(PAGE.split())
RECORDS = Path(__file__).parents[3] / "records"
LARGE_STEP = ("gpt-oss-120b, random weights", 1, 2048)
STREAMING = ("decode_qkv", "decode_o", "decode_fc1", "decode_fc2", "decode_experts", "decode_lm_head")
GB10_DEFAULTS = find_defaults({}, CATALOGUE["gb10"], environ={}, triton=(3, 8))
BIG, GB10, SHARE = PRESETS["gpt-oss-120b"], GPUS["gb10"], 0.85


def rows_of(name):
    """Returns the cells of a table between its comments, without the heading."""
    text = re.search(rf"<!-- {name} -->\n(.*?)<!-- end of {name} -->", PAGE, re.DOTALL).group(1)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def speeds(step):
    prediction = predict(step_cost(BIG, step), GB10, SHARE)[-1]
    return [f"{prediction.ceiling_tok_s:.1f}", f"{prediction.predicted_tok_s:.1f}"]


def dense_of(cell):
    return cell.partition(",")[0]


def test_formats():
    rows = rows_of("formats")
    assert [dense_of(row[0]) for row in rows] == ["bf16", "fp8", "mxfp4"]
    for cell, gigabytes, *shown in rows:
        step = StepShape(dense=dense_of(cell))
        assert gigabytes == f"{step_cost(BIG, step).bytes / 1e9:.2f}" and shown == speeds(step)


def test_steps():
    for requests, context, *shown in rows_of("steps"):
        assert shown == speeds(StepShape(dense="mxfp4", requests=int(requests), context=int(context)))


def test_prompts():
    rows = predict_prompts(BIG, StepShape(dense="mxfp4"), "gb10", model="gpt-oss-120b")
    by_activation = {(row.activation, row.tokens): row for row in rows}
    for tokens, scaled, plain, published in rows_of("prompts"):
        expected = [by_activation[activation, int(tokens)] for activation in ("mxfp8", "bf16")]
        assert [scaled, plain] == [f"{row.predicted_tok_s:.0f}" for row in expected]
        assert published == f"{expected[0].published_tok_s:.0f}"


def test_prompt_in_steps_of_the_server_and_in_smaller_ones():
    batch = GB10_DEFAULTS.config.batch
    assert find_budget(batch, CATALOGUE["gb10"]) == STEP_TOKENS == 8192
    rows = predict_prompts(BIG, StepShape(dense="mxfp4"), "gb10", lengths=(8192,), step_tokens=4096)
    assert f"{rows[0].predicted_tok_s:.0f} tok/s are predicted (`--step-tokens 4096`)" in PAGE


def test_nodes():
    for cell, reading, link, tok_s, gain in rows_of("nodes"):
        cost = step_cost(BIG, StepShape(dense=dense_of(cell)))
        two = predict_nodes(BIG, cost, GB10.read_gb_s, SHARE, 2, Link())
        assert (reading, link) == (f"{two.read_ms:.2f}", f"{two.link_ms:.2f}")
        assert (tok_s, gain) == (f"{two.predicted_tok_s:.1f}", f"{two.speedup:.2f}")


def test_sentences_about_nodes():
    link = Link()
    waits = find_link_seconds(BIG, 1, 2, link) - find_link_seconds(BIG, 1, 2, replace(link, latency_us=0.0))
    assert f"A step has {waits * 1e6 / link.latency_us:.0f} messages of a few KB; {link.latency_us:.0f} us" in TEXT
    assert f"the larger part is {EXPERT_SHARE[2]:.0%}".replace("%", " %") in TEXT
    one_s, cost = 1 / 60, step_cost(BIG, StepShape(dense="mxfp4"))  # a stack with 60 tok/s on one node
    two = predict_nodes(BIG, cost, GB10.read_gb_s, cost.seconds(GB10.read_gb_s) / one_s, 2, link)
    assert f"60 tok/s on one Spark would have {two.predicted_tok_s:.0f} on two" in TEXT


def test_steps_with_prompts_beside_decoding_requests():
    """The seconds in the table that `serve` prints, which tests/test_defaults.py holds to the roofline."""
    (why,) = [choice.why for choice in GB10_DEFAULTS.choices if choice.setting == "max_decode_delay_ms"]
    short, long = re.findall(r"takes (\d\.\d\d) s", why)
    assert f"even for 64 prompt tokens: {short} s, and {long} s for 2048 (predicted)" in TEXT


def test_shares_measured_on_the_h200():
    records = list(map(Record.load, (RECORDS / "h200-decode").glob("*.json")))
    shares = {}
    for record in records:
        figures = record.parameters
        if (figures.get("model"), figures.get("batch"), figures.get("context")) == LARGE_STEP:
            shares[record.config["kernels"]["mxfp4_layers"]] = figures["share_of_floor"]
    shipped, packed = (f"{100 * shares[layers]:.0f} %" for layers in ("", "qkv,o,lm_head"))
    assert f"reach {shipped} of the floor as shipped and {packed} with all layers in MXFP4 (measured)" in TEXT


def test_rates_of_gb10_plans_on_the_h200():
    records = map(Record.load, (RECORDS / "h200-gb10-plans").glob("op-*.json"))
    rates = [
        record.parameters["times_gb10_memory"]
        for record in records
        if record.parameters["m"] == 1 and record.parameters["op"] in STREAMING
    ]
    assert len(rates) >= len(STREAMING)
    assert f"at {min(rates):.1f} times the rate of a GB10's memory or more (measured" in TEXT
    h200 = CATALOGUE["h200"]
    sms, bandwidth = CATALOGUE["gb10"].num_sms / h200.num_sms, GB10.read_gb_s / GPUS["h200"].read_gb_s
    assert f"has {100 * sms:.0f} % of the SMs for {100 * bandwidth:.0f} % of the bandwidth" in TEXT


def test_hours_of_a_report():
    def minutes(**options):
        return sum(part.minutes for part in list_parts(CATALOGUE["gb10"], Path("out"), **options))

    real = Path("gpt-oss-120b")
    long, plain = (minutes(quick=False, model=model) / 60 for model in (real, None))
    assert f"# about {long:.1f} h; without --model {plain:.1f} h" in PAGE
    quick, quick_plain = (minutes(quick=True, model=model) for model in (real, None))
    assert f"`--quick` takes about {quick:.0f} minutes, without `--model` {quick_plain:.0f}" in TEXT


@pytest.mark.parametrize("heading", ["Serve", "Speed of one request", "Prompts", "Two Sparks", "Quality"])
def test_sections_say_what_is_measured_predicted_or_not_yet_run(heading):
    section = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE).group(1)
    assert re.search(r"\b(measured|predicted|not\s+yet\s+run)\b", section, re.IGNORECASE)


def test_defaults():
    expected = [
        [f"`{choice.setting}`", str(choice.value), f"`{choice.override}`"] for choice in GB10_DEFAULTS.choices
    ]
    assert rows_of("defaults") == expected


def test_memory():
    layout = find_layout(BIG, 64)
    pages = UNIFIED_REQUESTS * layout.count_pages(BIG.max_context) * page_bytes(BIG, 64, torch.bfloat16)
    packed = replace(BIG, mxfp4_layers=("qkv", "o", "lm_head"))
    pages_gib, packed_gib, plain_gib = (size / GIB for size in (pages, weight_bytes(packed), weight_bytes(BIG)))
    assert f"requests of {BIG.max_context:,} tokens need {pages_gib:.0f} GiB" in TEXT
    assert f"itself {packed_gib:.0f} GiB with these layers in MXFP4, {plain_gib:.0f} as shipped" in TEXT
