"""attention=torch:invariant: equal to the reference, without reading what no request holds."""

import pytest

from firesteel.device import find_device
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.proof.verify import Status, check_sample
from tests.kernels.ops.test_attention import SINKS, sample

SAMPLES = {
    "ends of pages": {"spans": [(1, held) for held in (1, 15, 16, 17, 63, 64, 65)], "sinks": SINKS},
    "window": {"spans": [(1, 144), (20, 21), (1, 36)], "window": 20, "sinks": SINKS},
    "chunks and no queries": {"spans": [(0, 9), (33, 90), (0, 3), (1, 1)], "page_size": 64},
}


@pytest.mark.parametrize("name", SAMPLES)
def test_result_is_the_references_with_stale_entries_in_page_tables(name):
    options = dict(SAMPLES[name])
    checked = check_sample(
        attention,
        attention.implementations["torch:invariant"],
        sample(name, options.pop("spans"), **options),
    )
    assert checked.status is Status.PASSED, checked.why
    assert attention.implementations["torch:invariant"].needs(find_device("cpu")) is None
