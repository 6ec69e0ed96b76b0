"""The built-in model with other settings, and damaged copies of it."""

import shutil
from dataclasses import dataclass

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from firesteel.hub import BUILT_IN

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Variant:
    name: str
    coherent: bool
    flags: tuple[str, ...] = ()
    damage: str = ""  # a key of DAMAGE

    def __str__(self):
        return self.name


VARIANTS = (
    Variant("shipped", True),
    Variant("mxfp4", True, ("--mxfp4-layers", "all")),
    Variant("fp8", True, ("--kv-cache-dtype", "fp8")),
    Variant("no-sinks", False, ("--no-sinks",)),
    Variant("random", False, damage="random"),
    Variant("one-token", False, damage="one-token"),
)


def with_random_weights(tensors):
    """Keeps norms and the scales of groups, so that activations stay finite."""
    source = torch.Generator().manual_seed(1)
    for name, weight in tensors.items():
        if name.endswith("_blocks"):
            tensors[name] = torch.randint(0, 256, weight.shape, generator=source, dtype=torch.uint8)
        elif weight.dtype != torch.uint8 and "norm" not in name:
            spread = weight.float().std()
            tensors[name] = (spread * torch.randn(weight.shape, generator=source)).to(weight.dtype)


def with_one_token(tensors):
    """Makes all logits equal, so that the greedy token is always the first."""
    tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"])


DAMAGE = {"random": with_random_weights, "one-token": with_one_token}


def find_model(variant, folder):
    """Returns what `--model` names: the built-in model, or a damaged copy in the folder."""
    if not variant.damage:
        return "kindling"
    copy = shutil.copytree(BUILT_IN, folder / variant.name)
    with safe_open(BUILT_IN / WEIGHTS, "pt") as file:
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = file.metadata()
    DAMAGE[variant.damage](tensors)
    save_file(tensors, copy / WEIGHTS, metadata=metadata)
    return str(copy)
