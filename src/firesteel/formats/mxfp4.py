"""MXFP4: E2M1 elements, two per byte, low nibble first; one E8M0 scale per 32 elements."""

import functools

import torch
from torch import Tensor

from firesteel.formats import e2m1, e8m0, group


def quantize(x: Tensor, rule: str = "ocp") -> tuple[Tensor, Tensor]:
    """Quantizes x [..., K] to codes [..., K/2] and scales [..., K/32], both uint8. See group.quantize."""
    codes, scales = group.quantize(x, e2m1.E2M1, rule)
    return pack(codes), scales


def dequantize(codes: Tensor, scales: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes codes [..., K/2] and scales [..., K/32] to [..., K]. Does not synchronise.

    Exact in float32 and bfloat16 below 2^128. Larger products (such as 6 with scale byte 254) are infinite;
    quantize never makes them. float16 rounds once. Scale 255 gives NaN: e8m0.check refuses it at load.
    """
    group.check_shapes(codes, scales, values_per_byte=2)
    # On a CPU one gather from 512 KiB (float32) takes a quarter less time than a gather and a multiply.
    index = torch.unflatten(codes, -1, (scales.shape[-1], group.SIZE // 2)).int()
    index += (scales.int() << 8).unsqueeze(-1)
    pairs = _scaled_pairs(dtype, codes.device).index_select(0, index.flatten())
    return pairs.view(dtype).view(*codes.shape[:-1], 2 * codes.shape[-1])


def pack(codes: Tensor) -> Tensor:
    """Packs codes [..., K], one per byte, into [..., K/2]."""
    if codes.shape[-1] % 2:
        raise ValueError(f"K = {codes.shape[-1]} is odd: two codes share a byte")
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


def unpack(codes: Tensor) -> Tensor:
    """Unpacks [..., K/2] to codes [..., K], one per byte."""
    return torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)


_PAIR_DTYPE = {
    torch.float16: torch.int32,
    torch.bfloat16: torch.int32,
    torch.float32: torch.int64,
    torch.float64: torch.complex128,
}


@functools.cache
def _scaled_pairs(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Returns [65536]: element 256 * scale + byte holds both values of the byte times the scale, side by side.

    The first call for a device builds the table and synchronises: make it before capturing a graph.
    """
    if dtype not in _PAIR_DTYPE:
        raise TypeError(f"mxfp4 decodes to {', '.join(map(str, _PAIR_DTYPE))}, not {dtype}")
    byte = torch.arange(256, dtype=torch.uint8)
    pairs = e2m1.decode(unpack(byte.unsqueeze(-1)), torch.float64)
    table = e8m0.decode(byte, torch.float64).view(256, 1, 1) * pairs
    return table.to(dtype).flatten().view(_PAIR_DTYPE[dtype]).to(device)
