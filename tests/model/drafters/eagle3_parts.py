"""Child of test_eagle3.py, with Triton's interpreter on: python eagle3_parts.py - FOLDER...

Runs heads in Triton and in the references, both in bf16: the same drafts, and keys and values within rounding.
"""

import sys
from pathlib import Path

import torch

from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.model.drafters.draft_sizes import DraftSize
from firesteel.model.drafters.drafter import DraftContext
from firesteel.model.drafters.eagle3 import load_eagle3
from firesteel.types import Batch, KvView

sys.path.append(str(Path(__file__).parents[3]))

from tests.model.drafters.draft_plans import run_padded, take
from tests.model.drafters.heads import CPU, TARGET, new_target

PAGE_SIZE = 16
STEPS = (((2, 5), (0, 2)),)


def run(folder, pins, size=None):
    """Returns the drafts of two texts, all keys and values, and what computed each op.

    With `size`, they are drafted in a padded step.
    """
    target = new_target(Kernels(CPU, pins, Ledger()))
    target.dtype = torch.bfloat16
    drafter = load_eagle3(folder, target, CPU)
    drafter.attach(9, PAGE_SIZE, CPU.torch_device)
    generator = torch.Generator().manual_seed(2)
    width = len(drafter.boundaries) * TARGET.hidden_size
    table, fed, drafts = 1 + torch.arange(8).view(2, 4), [0, 0], []
    for lens, counts in STEPS:
        text = torch.arange(2).repeat_interleave(torch.tensor(lens))
        positions = torch.cat([torch.arange(at, at + count) for at, count in zip(fed, lens, strict=True)])
        fed = [at + count for at, count in zip(fed, lens, strict=True)]
        slots = table[text, positions // PAGE_SIZE] * PAGE_SIZE + positions % PAGE_SIZE
        view = KvView(page_table=table, slots=slots)
        batch = Batch(
            token_ids=torch.randint(TARGET.vocab_size, (len(text),), generator=generator),
            positions=positions,
            query_starts=torch.tensor([0, *lens]).cumsum(0),
            kv_lens=torch.tensor(fed),
            full=view,
            window=view,
            logit_rows=text[:0],
        )
        features = torch.randn(len(text), width, generator=generator).bfloat16()
        context = DraftContext(
            batch=batch,
            features=features,
            followers=batch.token_ids.roll(-1),
            next_ids=batch.token_ids[batch.query_starts[1:] - len(text)],
        )
        with torch.inference_mode():
            if size is None:
                drafted = drafter.draft(context, counts)
            else:
                drafted = run_padded(drafter, context, counts, size, idle_page=0)
        drafts += take(drafted, counts)
    ops = {ran.op: ran.implementation for ran in target.kernels.ledger.entries}
    return drafts, torch.stack((drafter.k_pages, drafter.v_pages)).float(), ops


assert interpreting()
torch.set_num_threads(1)
names = ("rms_norm", "linear", "rope_kv_write", "attention")
for folder in map(Path, sys.argv[2:]):
    expected, pages, _ = run(folder, dict.fromkeys((op.name for op in NETWORK_OPS), "reference"))
    actual, in_triton, ops = run(folder, dict.fromkeys((op.name for op in NETWORK_OPS), "triton"))
    assert all(ops[name].startswith("triton") for name in names), ops
    assert actual == expected, (folder, actual, expected)
    torch.testing.assert_close(in_triton, pages, atol=0.05, rtol=0.05)
    padded, in_padded, _ = run(
        folder, dict.fromkeys((op.name for op in NETWORK_OPS), "triton"), DraftSize(4, 12, 3)
    )
    assert padded == expected and not in_padded[:, 0].any(), (folder, padded, expected)
    torch.testing.assert_close(in_padded, pages, atol=0.05, rtol=0.05)
