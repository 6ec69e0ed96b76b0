"""Figures of the front end from what its clients received."""

from firesteel.server.stub.bench import summarise
from firesteel.server.stub.clients import ClientStream


def test_rates_cover_the_time_of_all_streams():
    streams = [ClientStream(1.0, 3.0, 10, 500), ClientStream(2.0, 5.0, 10, 500)]
    figures = summarise(streams, cpu_s=1.0, max_tokens=10)
    assert (figures.tok_s, figures.core_share, figures.us_a_token) == (5.0, 0.25, 50_000.0)
    assert (figures.chunks_a_token, figures.bytes_a_token) == (1.0, 50.0)
