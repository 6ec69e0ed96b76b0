"""Stand-ins for the package triton_kernels and for parts of FlashInfer; they compute nothing."""

from types import SimpleNamespace

import torch

from firesteel.kernels.libraries import hopper_experts, triton_kernels, triton_kernels_moe
from firesteel.kernels.libraries.package import LibraryPackage


class Layout:
    """Pads to a multiple of four and mirrors, so that an order that is not restored shows."""

    def __init__(self, shape, mx_axis, num_warps=None):
        assert mx_axis == 1
        self.shape, self.keeps_rows = shape, num_warps is not None

    def swizzle_data(self, data):
        padded = torch.nn.functional.pad(data, (0, -data.shape[2] % 4, 0, -data.shape[1] % 4))
        return padded.flip(1).mT.contiguous().mT

    def unswizzle_data(self, data):
        restored = data.flip(1)
        return restored if self.keeps_rows else restored[:, : self.shape[1], : self.shape[2]]


def make_library(matmul_ogs=None):
    def route(mask, weights, ids, num_experts, active):
        return SimpleNamespace(gate_scal="weights by expert"), "gather", "scatter"

    parts = dict.fromkeys(("Storage", "Tensor", "Bitmatrix", "FP4"), SimpleNamespace)
    parts["Storage"] = lambda data, layout: (data, layout)
    parts["Tensor"] = lambda storage, **facts: SimpleNamespace(storage=storage, **facts)
    parts["Bitmatrix"] = lambda data, **facts: SimpleNamespace(data=data, **facts)
    return SimpleNamespace(
        package=LibraryPackage("triton_kernels", "1.0", "FOLDER"),
        layout=SimpleNamespace(HopperMXValueLayout=Layout, HopperMXScaleLayout=Layout),
        tensor=SimpleNamespace(**parts),
        numerics=SimpleNamespace(InFlexData=lambda: None),
        swiglu=SimpleNamespace(swiglu_fn="swiglu"),
        routing=SimpleNamespace(routing_from_bitmatrix=route),
        matmul=SimpleNamespace(
            matmul_ogs=matmul_ogs,
            FlexCtx=lambda rhs_data: None,
            PrecisionConfig=SimpleNamespace,
            FusedActivation=lambda specs, values, reduction: (specs, values, reduction),
            FnSpecs=lambda *parts: parts,
        ),
    )


def make_jit(*modules):
    """Returns FlashInfer's package of compiled modules, of which it has asked for these."""
    names = list(modules)
    registry = SimpleNamespace(get_all_specs=lambda: dict.fromkeys(names))
    return SimpleNamespace(jit_spec_registry=registry, names=names)


def use_stand_in(monkeypatch, library=None):
    """Puts the stand-in in place of the package; returns it."""
    library = library or make_library()
    for module in (hopper_experts, triton_kernels_moe, triton_kernels):
        monkeypatch.setattr(module, "import_library", lambda: library)
    triton_kernels_moe._make_swiglu.cache_clear()
    return library
