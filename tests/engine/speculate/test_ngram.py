"""The latest earlier place of a text's last tokens, and the copy from there."""

import random

from firesteel.engine.speculate.ngram import MOST_MATCHED, NUM_MATCHED, NgramIndex


def search(tokens):
    """Returns by comparison what the index finds."""
    last = tokens[-NUM_MATCHED:]
    ends = range(NUM_MATCHED, len(tokens))
    return max((end for end in ends if tokens[end - NUM_MATCHED : end] == last), default=None)


def test_latest_earlier_place_is_found_while_the_text_grows():
    rng, found = random.Random(3), 0
    for _ in range(20):
        tokens = [rng.randrange(3) for _ in range(rng.randrange(1, 6))]
        index = NgramIndex(tokens)
        for _ in range(60):
            place = index.find() if len(tokens) >= NUM_MATCHED else None
            assert place == (search(tokens) if len(tokens) > NUM_MATCHED else None)
            found += place is not None
            tokens += [rng.randrange(3) for _ in range(rng.choice([1, 1, 4]))]
    assert found > 300


def test_text_without_repetition_has_no_place():
    assert NgramIndex(list(range(50))).find() is None


def test_short_text_has_no_place():
    assert [NgramIndex([1] * count).find() for count in range(NUM_MATCHED + 2)][:-1] == [None] * (NUM_MATCHED + 1)


def test_copy_continues_with_itself_where_the_text_ends():
    index = NgramIndex([9, 1, 2, 3, 1, 2, 3])
    assert index.find() == 4
    assert index.copy_after(4, 8) == [1, 2, 3, 1, 2, 3, 1, 2]


def test_common_tokens_before_the_place_are_counted():
    text = [*range(10), 5, *range(3, 10)]
    index = NgramIndex(text)
    place = index.find()
    assert place == 10 and index.count_common(place) == 7
    assert NgramIndex([1] * 99).count_common(98) == MOST_MATCHED
