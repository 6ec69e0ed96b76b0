"""FlashInfer's MXFP4 matmul for dense layers on Blackwell: its grouped matmul, of one group.

Tokens are rounded to MXFP8 by the OCP rule, as our kernels do it. There is no such matmul for other GPUs: `mm_fp4`
wants both sides in FP4, and `mm_bf16_fp4` weights in NVFP4.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from firesteel.device import DeviceSpec, find_capability
from firesteel.formats.group import SIZE
from firesteel.kernels.ahead import current_ahead
from firesteel.kernels.call_key import Described
from firesteel.kernels.libraries.flashinfer import import_flashinfer, lacks_flashinfer, note_call
from firesteel.kernels.libraries.flashinfer_order import BLACKWELL_ROWS, order_scales, restore_scales
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.operands.weights import Mxfp4Weight

PADDED = 128  # columns, and rows of scales, are a multiple of it
ROWS = 8  # rows of weights are a multiple of it
TOKENS = 4  # so are tokens
UNIT = 127  # the scale of padding: 1
TILES = {10: (64, 128), 12: (32, 64, 128)}  # tokens of a tile, by the first digits of the compute capability


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashinferWeight(Described):
    """[M, N] in MXFP4: columns padded to 128, scales in tiles of 128 rows and 4 groups."""

    codes: Tensor  # [1, M, N/2] uint8
    scales: Tensor  # [1, M/128, N/128, 32, 16] uint8, rows padded, too
    columns: int

    @classmethod
    def pack(cls, weight: Mxfp4Weight) -> FlashinferWeight:
        rows, columns = weight.shape
        spare = -columns % PADDED
        scales = functional.pad(weight.scales, (0, spare // SIZE, 0, -rows % PADDED), value=UNIT)
        return cls(
            codes=functional.pad(weight.codes, (0, spare // 2))[None],
            scales=order_scales(scales[None], BLACKWELL_ROWS),
            columns=columns,
        )

    def unpack(self) -> Mxfp4Weight:
        rows, columns = self.shape
        scales = restore_scales(self.scales, BLACKWELL_ROWS)
        return Mxfp4Weight(
            codes=self.codes[0, :, : columns // 2].contiguous(),
            scales=scales[0, :rows, : columns // SIZE].contiguous(),
        )

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[1], self.columns

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes


def linear_ready(device: DeviceSpec) -> str | None:
    """Requires the package and what it imports, a compiler unless it was compiled ahead, the GPU, and Triton."""
    major = 0 if device.capability is None else device.capability[0]
    if why := lacks_flashinfer(name_module(major)):
        return why
    if major not in TILES:
        return f"multiplies MXFP4 weights on SM10x and SM12x (Blackwell), this is {device.name}"
    return triton_ready()(device)


def name_module(major: int) -> str:
    """Returns FlashInfer's name of the compiled module for a GPU."""
    return f"gemm_sm{major}0"


def refuse(x: Tensor, weight: FlashinferWeight) -> str | None:
    """Returns why the library cannot take these operands, or None."""
    if x.dtype != torch.bfloat16:
        return f"takes bf16 tokens, not {x.dtype}"
    if not x.shape[0]:
        return "wants at least one token"
    if weight.shape[0] % ROWS:
        return f"takes weights whose rows are a multiple of {ROWS}, not {weight.shape[0]}"
    return None if x.stride(-1) == 1 else "wants tokens whose values lie side by side"


def run(x: Tensor, weight: FlashinferWeight, bias: Tensor | None) -> Tensor:
    if current_ahead() is not None:
        return torch.empty(x.shape[0], weight.shape[0], dtype=x.dtype, device=x.device)
    library = import_flashinfer()
    tokens, groups = x.shape[0], 2 * weight.codes.shape[2] // SIZE
    codes, scales = round_tokens(x, TOKENS, 2 * weight.codes.shape[2])
    capability = find_capability(x.device) or (12, 0)
    tile = next((tile for tile in TILES[capability[0]] if tile >= tokens), TILES[capability[0]][-1])
    y: Tensor = library.gemm.group_gemm_mxfp8_mxfp4_nt_groupwise(
        codes,
        weight.codes,
        scales.view(-1, groups),
        weight.scales.view(1, -1, groups),
        torch.arange(2, dtype=torch.int32, device=x.device)
        * codes.shape[0],  # where the only group begins and ends
        tile_n=tile,
        out_dtype=x.dtype,
    )
    name = name_module(capability[0])
    note_call(library, name, f"{name} mxfp8")
    return y[:tokens] if bias is None else y[:tokens] + bias


def round_tokens(x: Tensor, multiple: int, columns: int) -> tuple[Tensor, Tensor]:
    """Rounds to MXFP8; returns E4M3 [T, columns], both padded, and scales in tiles of 128 rows and 4 groups."""
    from firesteel.kernels.triton.quantize_mxfp8 import launch

    padded = functional.pad(x, (0, columns - x.shape[1], 0, -x.shape[0] % multiple))
    codes = torch.empty(padded.shape, dtype=torch.uint8, device=x.device)
    rows = codes.shape[0] + -codes.shape[0] % PADDED
    scales = torch.zeros(rows, columns // SIZE, dtype=torch.uint8, device=x.device)
    launch(padded, codes, scales)
    return codes.view(torch.float8_e4m3fn), order_scales(scales[None], BLACKWELL_ROWS)
