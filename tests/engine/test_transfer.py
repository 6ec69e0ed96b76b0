"""Downloads hold the values of the moment they were requested."""

import pytest
import torch

from firesteel.engine.transfer import Download


def test_copies_do_not_change_with_their_source():
    numbers, real = torch.arange(3), torch.tensor([[0.5]])
    download = Download(numbers, real)
    numbers.zero_()
    real.zero_()
    copied = download.read()
    assert [tensor.tolist() for tensor in copied] == [[0, 1, 2], [[0.5]]]


@pytest.mark.gpu
def test_gpu_copies_wait_for_what_was_launched_before_and_for_nothing_later(forbid_waiting):
    numbers = torch.zeros(4, dtype=torch.int64, device="cuda")
    Download(numbers).read()
    with forbid_waiting():
        numbers.add_(7)
        download = Download(numbers)
        torch.cuda._sleep(200_000_000)
        numbers.zero_()
        later = torch.cuda.Event()
        later.record()
    (copied,) = download.read()
    assert copied.tolist() == [7] * 4 and copied.is_pinned() and not later.query()
