"""Names and defaults on help pages equal those of their owners, which import torch."""

from firesteel.cli import choices
from firesteel.cli.tables import STATUS_COLOURS
from firesteel.config import all_settings
from firesteel.device.catalogue import CATALOGUE
from firesteel.kernels.operands.activation import ACTIVATIONS, FP8
from firesteel.kernels.proof.verify import Status
from firesteel.lab.compare.compare import MEMORY_GB, THRESHOLD
from firesteel.measure.ops import tune
from firesteel.measure.roofline.nodes import Link
from firesteel.measure.roofline.prompts import LENGTHS, MATRIX_SHARE, STEP_TOKENS
from firesteel.measure.roofline.roofline import GPUS, KV_BYTES, ROW_BYTES
from firesteel.model.decode import MOST_REQUESTS
from firesteel.model.spec import PRESETS
from firesteel.quality import PRECISIONS


def test_names_equal_those_of_their_owners():
    assert choices.ACTIVATIONS == ACTIVATIONS
    assert (*ACTIVATIONS, FP8) == choices.BENCH_ACTIVATIONS
    assert tuple(CATALOGUE) == tuple(GPUS) == choices.GPUS
    assert tuple(ROW_BYTES) == choices.DENSE_FORMATS and tuple(KV_BYTES) == choices.KV_FORMATS
    assert tuple(PRESETS) == choices.MODELS
    assert tuple(op.name for op in tune.OPS) == choices.TUNED_OPS
    assert tuple(PRECISIONS) == choices.PRECISIONS
    assert {status.value for status in Status} == set(STATUS_COLOURS)


def test_defaults_equal_those_of_their_owners():
    assert choices.FUSED_REQUESTS == MOST_REQUESTS
    assert (choices.PROMPT_LENGTHS, choices.STEP_TOKENS) == (LENGTHS, STEP_TOKENS)
    assert choices.MATRIX_SHARE == MATRIX_SHARE
    assert (Link().gb_s, Link().latency_us) == (choices.LINK_GB_S, choices.LINK_US)
    assert (choices.SLOWER_PERCENT, choices.MORE_GB) == (100 * THRESHOLD, MEMORY_GB)


def test_variable_of_a_setting_is_its_name_with_the_prefix():
    """The help of --config says so with one example."""
    assert all(setting.env == f"FIRESTEEL_{setting.name.upper()}" for setting in all_settings().values())
