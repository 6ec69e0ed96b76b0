"""Child of test_attention_splits.py, interpreted: python attention_split_parts.py SAMPLES.pt KEYS PER_OCTAVE.

Checks samples with splits of KEYS keys at first: rows have the same bits however many programs share the keys, in
any chunks, alone, and with pages of any size.
"""

import random
import sys
from dataclasses import replace

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.op.tolerance import assert_close
from firesteel.kernels.ops import attention_fixed, attention_tiles
from firesteel.kernels.ops.attention import attention
from firesteel.kernels.ops.attention_operands import keep_rows
from firesteel.kernels.ops.attention_tiles import count_splits, cut_invariant, find_tiles
from firesteel.kernels.triton.attention_splits import find_begin, find_split

SIZES = (16, 32, 64, 128)  # of pages


@triton.jit
def find_places(positions, splits, begins, ends, KEYS: tl.constexpr, PER_OCTAVE: tl.constexpr):
    here = tl.program_id(0)
    split = find_split(tl.load(positions + here), KEYS, PER_OCTAVE)
    tl.store(splits + here, split)
    tl.store(begins + here, find_begin(split, KEYS, PER_OCTAVE))
    tl.store(ends + here, find_begin(split + 1, KEYS, PER_OCTAVE))


def check_places(keys, per_octave):
    """Checks splits around all edges against a list of them, and the host's count of them."""
    edges, size = [0], keys
    while len(edges) < 12 * per_octave:
        edges += [edges[-1] + size * (number + 1) for number in range((2 if len(edges) == 1 else 1) * per_octave)]
        size *= 2
    places = [edge + by for edge in edges for by in (-1, 0, 1) if 0 <= edge + by < edges[-1]]
    positions = torch.tensor(places, dtype=torch.int32)
    results = torch.empty(3, len(places), dtype=torch.int32)
    find_places[(len(places),)](positions, *results, KEYS=keys, PER_OCTAVE=per_octave)
    for place, (split, begin, end) in zip(places, results.T.tolist(), strict=True):
        assert begin == edges[split] <= place < end == edges[split + 1], (place, split, begin, end)
        assert count_splits(place + 1) == split + 1, place


def attend(operands, programs):
    shapes, tiles = find_tiles(cut_invariant, operands)
    return attention_fixed.launch_splits(operands, shapes, replace(tiles, splits=programs))


def repage(operands, size):
    """Returns the operands with pages of another size, which lie in reverse order."""
    old, table = operands.k_pages.shape[2], operands.page_table
    num_pages = -(-int(operands.kv_lens.max()) // size)
    made = torch.arange(len(table) * num_pages).flip(0).view(len(table), num_pages)
    pages = []
    for held in (operands.k_pages, operands.v_pages):
        wide = held.view(torch.uint8) if held.element_size() == 1 else held
        fresh = torch.full((made.numel(), wide.shape[1], size, wide.shape[3]), 127).to(wide.dtype)
        for request, length in enumerate(operands.kv_lens.tolist()):
            at = torch.arange(length)
            if operands.window is not None:
                queries = int(operands.query_starts[request + 1] - operands.query_starts[request])
                at = at[max(0, length - queries - operands.window + 1) :]
            fresh[made[request, at // size], :, at % size] = wide[table[request, at // old], :, at % old]
        pages.append(fresh.view(held.dtype))
    return replace(operands, k_pages=pages[0], v_pages=pages[1], page_table=made)


def check_rows(operands, rng):
    """Checks that chunks, single rows and other pages change no bit; returns the rows that were compared."""
    whole = attend(operands, 1)
    assert_close(actual=whole, expected=attention.reference(operands), tolerance=attention.tolerance)
    count, most = int(operands.query_starts[-1]), 1 if operands.window is not None else 3
    rows = sorted(rng.sample(range(count), min(count, 6)))
    alone = [rows[::-1], *([row] for row in rows[:2])]
    cut = rng.randint(1, count - 1) if count > 1 else 1
    pieces = [list(range(cut)), list(range(cut, count))] if count > 1 else []
    for part in (*alone, *pieces):
        kept = keep_rows(operands, part)
        for programs in {1, most} if len(part) < 9 else {1}:
            assert torch.equal(attend(kept, programs), whole[part]), (part, programs)
    for size in SIZES:
        few = repage(keep_rows(operands, rows), size)
        assert torch.equal(attend(few, most), whole[rows]), size


def widen(operands):
    """Returns the operands with a wider page table whose further entries must not be read."""
    more = torch.full((len(operands.page_table), 40), 1 << 40)
    return replace(operands, page_table=torch.cat((operands.page_table, more), 1))


def multiply(builder, a, b, accumulator, *_):
    """Multiplies row by row: in BLAS the order of a row's sums depends on its place, which it does not on a GPU."""
    product = np.matmul(a.data[:, None, :], b.data)[:, 0]
    return interpreter.TensorHandle(product + accumulator.data, accumulator.dtype.scalar)


assert interpreting()
plain, interpreter.InterpreterBuilder.create_dot = interpreter.InterpreterBuilder.create_dot, multiply
keys, per_octave = map(int, sys.argv[2:])
modules = (attention_tiles, attention_fixed)
shipped = attention_tiles.SPLIT_KEYS, attention_tiles.SPLITS_PER_OCTAVE
for module in modules:
    module.SPLIT_KEYS, module.SPLITS_PER_OCTAVE = keys, per_octave
check_places(keys, per_octave)
rng = random.Random(keys)
for sample in torch.load(sys.argv[1], weights_only=False):
    (operands,) = sample.clone()
    check_rows(operands, rng)
    if operands.window is None:
        few = keep_rows(operands, rng.sample(range(int(operands.query_starts[-1])), 2))
        expected = attend(few, 1)
        for programs in (2, count_splits(int(operands.kv_lens.max()))):
            assert torch.equal(attend(widen(few), programs), expected), programs
interpreter.InterpreterBuilder.create_dot = plain  # the process runs other programs, too
for module in modules:
    module.SPLIT_KEYS, module.SPLITS_PER_OCTAVE = shipped
