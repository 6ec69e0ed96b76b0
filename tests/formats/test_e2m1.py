import torch

from firesteel.formats import e2m1

TABLE = [0, 0.5, 1, 1.5, 2, 3, 4, 6]


def test_table_is_the_published_one():
    assert e2m1.decode(torch.arange(16, dtype=torch.uint8)).tolist() == TABLE + [-v for v in TABLE]


def test_ties_go_to_the_even_code():
    ties = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])
    assert e2m1.encode(ties).tolist() == [0, 2, 2, 4, 4, 6, 6]
