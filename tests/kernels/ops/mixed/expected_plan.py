"""The rule by which attention=triton:mixed splits requests, in plain Python."""

import itertools

from firesteel.kernels.ops.mixed.cut import SPLIT_QUERIES


def count_tiles(starts, cut):
    return [-(-(end - start) // cut.base.queries) for start, end in itertools.pairwise(starts)]


def list_splits(starts, lens, cut):
    """Returns the number of splits of each request."""
    tiles, queries = count_tiles(starts, cut), [end - start for start, end in itertools.pairwise(starts)]
    keys = -(-sum(count * held for count, held in zip(tiles, lens, strict=True)) // cut.wanted)
    keys = min(max(keys, cut.least_keys), cut.most_keys)

    def split(keys):
        return [
            1 if count > SPLIT_QUERIES else max(-(-held // keys), 1)
            for count, held in zip(queries, lens, strict=True)
        ]

    needed = sum(count * splits for count, splits in zip(tiles, split(keys), strict=True) if splits > 1)
    return split(keys if needed <= cut.slots else keys * -(-2 * needed // cut.slots))


def list_work(starts, lens, cut, num_work):
    """Returns request, first query, split and number of splits of each program, and the slots of splits."""
    work, slot = [], 0
    for request, (tiles, splits) in enumerate(
        zip(count_tiles(starts, cut), list_splits(starts, lens, cut), strict=True)
    ):
        for tile in range(tiles):
            work += [(request, tile * cut.base.queries, split, splits, slot) for split in range(splits)]
            slot += splits if splits > 1 else 0
    padding = range(num_work - len(work))
    return work + [(len(lens), tile * cut.base.queries, 0, 1, slot) for tile in padding]
