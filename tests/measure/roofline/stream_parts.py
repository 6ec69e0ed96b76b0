"""Child process of test_stream_read.py, interpreted: checks that the sums contain every word once."""

import torch

from firesteel.kernels.op.needs import interpreting
from firesteel.measure.roofline.stream_read import TILE_WORDS, stream_read

assert interpreting()
for length in (1, 5, TILE_WORDS, TILE_WORDS + 1, 19 * TILE_WORDS + 77):
    data = torch.arange(1, length + 1, dtype=torch.int32) % 1000
    sums = stream_read(data, num_sms=2)
    assert sums.dtype == torch.int32 and int(sums.sum()) == int(data.sum()), length
