"""GPUs by name: longer names mean the same, in every table."""

import pytest

from firesteel.device import GIB
from firesteel.device.catalogue import ALIASES, CATALOGUE, find_listed_gpu, shorten_name
from firesteel.errors import UserError
from firesteel.measure.roofline.roofline import GPUS, find_gpu


def test_roofline_and_catalogue_have_the_same_names():
    assert list(CATALOGUE) == list(GPUS)
    assert set(ALIASES.values()) <= set(CATALOGUE) and not set(ALIASES) & set(CATALOGUE)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("gb10", "gb10"),
        ("GB10", "gb10"),
        ("DGX Spark", "gb10"),
        ("dgx-spark", "gb10"),
        ("NVIDIA GB10", "gb10"),
        ("NVIDIA GeForce RTX 5090", "5090"),
        ("rtx_pro_6000", "pro6000"),
        ("H200 SXM", "h200"),
    ],
)
def test_longer_names_mean_the_same_in_both_tables(text, name):
    assert shorten_name(text) == name
    assert find_listed_gpu(text) is CATALOGUE[name] and find_gpu(text) is GPUS[name]


@pytest.mark.parametrize("name", CATALOGUE)
def test_name_that_the_driver_gives_is_found(name):
    assert find_listed_gpu(CATALOGUE[name].name.removesuffix(" 80GB HBM3")) is CATALOGUE[name]


def test_unknown_gpu_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UserError, match="there is no GPU 'tpu' in the table; it has gb10, h100"):
        find_listed_gpu("tpu")


def test_figures_of_gb10():
    gb10 = CATALOGUE["gb10"]
    assert (gb10.capability, gb10.num_sms, gb10.is_unified) == ((12, 1), 48, True)
    assert 115 * GIB <= gb10.memory_bytes <= 128e9
    assert not any(device.is_unified for name, device in CATALOGUE.items() if name != "gb10")
