"""Frames that reach the engine's process in parts, or not at all."""

import socket
import threading

import pytest

from firesteel.engine.process.channel import Channel
from firesteel.engine.process.messages import Shutdown, Submit, pack
from firesteel.types import Request, SamplingParams

LONG = Submit.of(Request(request_id="a", token_ids=[9] * 100_000, params=SamplingParams()), 7)


@pytest.fixture
def ends():
    """The parent's and the child's end of a socket, and a channel on the latter."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, Channel(theirs)


def test_channel_reads_frames_that_arrive_in_parts(ends):
    ours, channel = ends
    frames = pack(LONG) + pack(Shutdown())
    sender = threading.Thread(
        target=lambda: [ours.sendall(frames[i : i + 30_011]) for i in range(0, len(frames), 30_011)]
    )
    sender.start()
    assert channel.receive() == LONG and channel.receive() == Shutdown()
    sender.join()


@pytest.mark.parametrize("part", [0, 2, 7])
def test_channel_ends_with_the_parent_even_within_a_frame(ends, part):
    ours, channel = ends
    ours.sendall(pack(LONG)[:part])
    ours.close()
    assert channel.receive() is None
