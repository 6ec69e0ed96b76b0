"""Steps as vLLM would hand them to the model, over pages of its layout, without vLLM."""

import itertools
from dataclasses import dataclass, field
from types import SimpleNamespace

import torch

from firesteel.config import resolve
from firesteel.device import find_device
from firesteel.engine.load import choose_fused, choose_kernels
from firesteel.model.gpt_oss import GptOss
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import KvCache
from firesteel.vllm_plugin.runtime import Runtime
from firesteel.vllm_plugin.step import VllmStep

PAGE = 16
BLOCKS = 256
CONTEXT = 1024


def new_pages(spec, device):
    """Returns pages as vLLM allocates them: a block holds keys, then values; all blocks hold NaN."""
    keys, values = [], []
    for _ in range(spec.num_layers):
        shape = (2 * BLOCKS, spec.num_kv_heads, PAGE, spec.head_dim)
        flat = torch.full(shape, float("nan"), dtype=device.dtype, device=device.torch_device)
        flat[:2] = 0  # vLLM's block 0, which padding reads and writes
        keys.append(flat)
        values.append(flat[1:])
    return KvCache(keys=keys, values=values)


def plain_pages(spec, device):
    """Returns pages of our own, in which block b is page b; no two layers share them."""
    shape = (BLOCKS, spec.num_kv_heads, PAGE, spec.head_dim)

    def pages():
        return [torch.zeros(shape, dtype=device.dtype, device=device.torch_device) for _ in spec.windows]

    return KvCache(keys=pages(), values=pages())


def open_runtime(spec, name, *, weights=None, context=CONTEXT, **settings):
    """Returns a runtime with random weights over new pages."""
    device = find_device(name)
    config = resolve(settings, environ={}).config
    kernels = choose_kernels(device, config)
    weights = weights or synthetic_weights(spec, device, seed=3)
    model = GptOss(spec, weights, kernels, device, max_context=context)
    fused = choose_fused(device, config, kernels.ledger, spec.mxfp4_layers)
    assembly = SimpleNamespace(model=model, held=spec, device=device, config=config, fused=fused)
    cache = new_pages(spec, device)
    return Runtime(assembly, cache, most_tokens=512, most_requests=16, max_context=context)


@dataclass
class Requests:
    """Requests with blocks of their own, in a random order, that grow step by step."""

    device: torch.device
    held: dict[int, int] = field(default_factory=dict)  # tokens by request
    blocks: dict[int, list[int]] = field(default_factory=dict)
    free: list[int] = field(default_factory=lambda: (torch.randperm(BLOCKS - 1) + 1).tolist())

    def step(self, new, padding=0):
        """Returns a step of `new` tokens by request, padded with requests of nobody as in vLLM's graphs."""
        starts, lens, slots, places, tables = [0], [], [], [], []
        for request, count in new.items():
            before = self.held.get(request, 0)
            owned = self.blocks.setdefault(request, [])
            while len(owned) * PAGE < before + count:
                owned.append(self.free.pop())
            self.held[request] = before + count
            positions = range(before, before + count)
            places += positions
            slots += [owned[place // PAGE] * PAGE + place % PAGE for place in positions]
            starts.append(starts[-1] + count)
            lens.append(before + count)
            tables.append(owned + [0] * (CONTEXT // PAGE - len(owned)))
        width = CONTEXT // PAGE
        tables += [[0] * width for _ in range(padding)]
        tokens = [(7 * place + 13 * number) % 200 for number, place in enumerate(places)]
        return VllmStep(
            token_ids=self._integers(tokens + [0] * padding, torch.int32),
            positions=self._integers(places + [0] * padding, torch.int64),
            query_starts=self._integers(starts + [starts[-1]] * padding, torch.int32),
            kv_lens=self._integers(lens + [0] * padding, torch.int32),
            full_slots=self._integers(slots + [-1] * padding, torch.int64),
            window_slots=self._integers(slots + [-1] * padding, torch.int64),
            full_table=self._integers(tables, torch.int32),
            window_table=self._integers(tables, torch.int32),
            most_queries=max(new.values()),
        )

    def _integers(self, values, dtype):
        return torch.tensor(values, dtype=dtype, device=self.device)


def walk(device):
    """Yields steps of all kinds: prompts, chunks, decoding requests beside prompts, decoding alone, padding."""
    requests = Requests(device)
    yield requests.step({0: 5})
    yield requests.step({1: 40, 2: 1, 3: 150})
    yield requests.step({0: 1, 1: 33, 3: 1, 2: 17})
    for count in (1, 2, 3, 5, 8):
        new = dict.fromkeys(range(count), 1)
        for request in range(count):
            if request not in requests.held:
                yield requests.step({request: 20 + request})
        yield requests.step(new)
    yield requests.step(dict.fromkeys(range(3), 1), padding=2)
    yield requests.step(dict.fromkeys(itertools.chain(range(8), (9,)), 1))
