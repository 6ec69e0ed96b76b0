"""Child of test_dflash.py, with Triton's interpreter on: drafts in Triton agree with those of the references."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # the checkout, for tests.*

from firesteel.device import find_device
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.registry import NETWORK_OPS
from firesteel.kernels.rope import RopeSpec
from firesteel.model.drafters.dflash import load_dflash
from firesteel.model.drafters.draft_sizes import DraftSize
from firesteel.model.drafters.drafter import DraftContext
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Batch, KvView
from tests.model.drafters.dflash_oracle import draw_config, draw_tensors, write_drafter
from tests.model.drafters.draft_plans import run_padded

TARGET = ModelSpec(
    num_layers=3,
    hidden_size=64,
    intermediate_size=64,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=272,
    windows=(8, None, 8),
    rope=RopeSpec(theta=150000.0),
    max_context=256,
)
CPU = find_device("cpu")
LENS = (37, 5)
OPS = ("rms_norm", "linear", "rope_kv_write", "attention")


class WatchedModel(GptOss):
    """Keeps the latest logits."""

    def project(self, x, weight, bias):
        y = super().project(x, weight, bias)
        if weight is self.weights.lm_head:
            self.latest = y
        return y


def run(folder, way, size=None):
    """Returns the logits of drafts after two texts, and the ops that ran in Triton; with `size`, padded."""
    kernels = Kernels(CPU, dict.fromkeys((op.name for op in NETWORK_OPS), way), Ledger())
    model = WatchedModel(TARGET, synthetic_weights(TARGET, CPU, seed=1), kernels, CPU, max_context=64)
    model.dtype = torch.bfloat16
    drafter = load_dflash(folder, model, CPU)
    drafter.attach(10, 16, CPU.torch_device)
    for pages in (*drafter.keys, *drafter.values):
        pages.fill_(torch.nan)
    generator = torch.Generator().manual_seed(3)
    table, (idle, _) = torch.randperm(10, generator=generator).split([8, 2])
    table = table.view(2, 4)
    positions = torch.cat([torch.arange(held) for held in LENS])
    rows = torch.arange(2).repeat_interleave(torch.tensor(LENS))
    view = KvView(page_table=table, slots=table[rows, positions // 16] * 16 + positions % 16)
    batch = Batch(
        token_ids=torch.zeros_like(positions),
        positions=positions,
        query_starts=torch.tensor([0, *LENS]).cumsum(0),
        kv_lens=torch.tensor(LENS),
        full=view,
        window=view,
        logit_rows=positions[:0],
    )
    features = torch.randn(len(positions), drafter.spec.num_features, generator=generator).bfloat16()
    with torch.inference_mode():
        followers = torch.zeros_like(positions)
        followers[batch.query_starts[1:] - 1] = next_ids = torch.tensor([7, 8])
        context = DraftContext(batch=batch, features=features, followers=followers, next_ids=next_ids)
        if size is None:
            drafter.draft(context, [7, 3])
        else:
            run_padded(drafter, context, [7, 3], size, idle_page=int(idle))
    ran = {entry.op for entry in kernels.ledger.entries if str(entry.implementation).startswith("triton")}
    return model.latest.float(), ran


assert interpreting()
torch.set_num_threads(1)
with TemporaryDirectory() as name:
    config = draw_config(TARGET)
    write_drafter(Path(name), config, draw_tensors(config, 1))
    expected, _ = run(Path(name), "reference")
    actual, ran = run(Path(name), "triton")
    padded, _ = run(Path(name), "triton", DraftSize(4, 48, 7))
assert ran >= set(OPS), ran
assert expected.std() > 0.3
for logits in (actual, padded[: len(expected)]):
    assert (logits - expected).norm() < 0.02 * expected.norm(), (logits - expected).abs().max()
