"""A group: 32 small-float elements that share a power-of-two scale (OCP Microscaling 1.0)."""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from firesteel.formats import e8m0

SIZE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Element:
    """A float of at most 8 bits: sign, exponent, mantissa; subnormals, no infinity.

    Codes are uint8, one per byte. Magnitudes above max_magnitude, and bytes wider than the format, are NaN.
    """

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max_magnitude: int  # code of the largest value, sign cleared
    nan_code: int | None = None

    @property
    def max_exponent(self) -> int:
        return (self.max_magnitude >> self.mantissa_bits) - self.bias

    def encode(self, x: Tensor) -> Tensor:
        """Returns the nearest codes, ties to even mantissa. Infinities saturate too; zeros keep their sign.

        NaN gives nan_code, or raises if the format has none (that check synchronises).
        """
        x = _as_float32(x)
        is_nan = x.isnan()
        if self.nan_code is None and is_nan.any():
            raise ValueError(f"{self.name} has no NaN, but {int(is_nan.sum())} values are NaN")
        codes = self.nearest(x)
        return codes if self.nan_code is None else codes.masked_fill(is_nan, self.nan_code)

    def decode(self, codes: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """Decodes exactly to float32, bfloat16, float16 or float64. Does not synchronise."""
        return _values(self, dtype, codes.device).index_select(0, codes.flatten().int()).view(codes.shape)

    def nearest(self, x: Tensor) -> Tensor:
        """Encodes float32 without checks: a NaN gives any code."""
        bits = x.view(torch.int32)
        magnitude = bits & 0x7FFF_FFFF
        drop = 23 - self.mantissa_bits
        is_odd = (magnitude >> drop) & 1
        normal = (magnitude + is_odd + ((1 << (drop - 1)) - 1)) >> drop
        normal -= (127 - self.bias) << self.mantissa_bits
        # At 2^23 quanta float32 steps by one quantum: the sum rounds to even, its low bits count the quanta.
        anchor_exponent = 23 + (1 - self.bias - self.mantissa_bits)
        subnormal = (x.abs() + 2.0**anchor_exponent).view(torch.int32) - ((anchor_exponent + 127) << 23)
        is_subnormal = magnitude < ((1 - self.bias + 127) << 23)
        codes = torch.where(is_subnormal, subnormal, normal).clamp(max=self.max_magnitude)
        sign = (bits >> 31) & 1
        return (codes | (sign << (self.exponent_bits + self.mantissa_bits))).to(torch.uint8)

    def value(self, code: int) -> float:
        fraction_bits = self.mantissa_bits
        sign_bit = 1 << (self.exponent_bits + fraction_bits)
        magnitude = code & (sign_bit - 1)
        if magnitude > self.max_magnitude or code >= 2 * sign_bit:
            return float("nan")
        exponent, fraction = magnitude >> fraction_bits, magnitude & ((1 << fraction_bits) - 1)
        significand = fraction + (1 << fraction_bits if exponent else 0)
        absolute = significand * 2.0 ** (max(exponent, 1) - self.bias - fraction_bits)
        return -absolute if code & sign_bit else absolute


def quantize(x: Tensor, element: Element, rule: str) -> tuple[Tensor, Tensor]:
    """Quantizes x [..., K] to codes [..., K], one per byte, and scales [..., K/32] e8m0.

    A group of zeros gets scale byte 0 (2^-127) and codes 0; -0.0 keeps its sign.
    Synchronises once, to refuse values that are not finite.
    """
    if rule not in RULES:
        raise ValueError(f"unknown scale rule {rule!r}; the rules are {', '.join(RULES)}")
    groups = _split(x)
    scales = RULES[rule](groups, element)
    return _encode_scaled(groups, scales, element).flatten(-2), scales


def dequantize(values: Tensor, scales: Tensor, dtype: torch.dtype) -> Tensor:
    """Multiplies values [..., K] by the scales of their groups and rounds once to dtype. Scale 255 gives NaN."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    groups = torch.unflatten(values.to(wide), -1, (scales.shape[-1], SIZE))
    return (groups * e8m0.decode(scales, wide).unsqueeze(-1)).flatten(-2).to(dtype)


def check_shapes(codes: Tensor, scales: Tensor, values_per_byte: int) -> None:
    if codes.dtype != torch.uint8 or scales.dtype != torch.uint8:
        raise TypeError(f"codes and scales are uint8, not {codes.dtype} and {scales.dtype}")
    group_bytes = SIZE // values_per_byte
    if not scales.dim() or codes.shape != (*scales.shape[:-1], scales.shape[-1] * group_bytes):
        raise ValueError(
            f"codes {tuple(codes.shape)} and scales {tuple(scales.shape)} disagree: "
            f"one scale covers {group_bytes} bytes of the last dimension"
        )


def _ocp(groups: Tensor, element: Element) -> Tensor:
    """Returns floor(log2(max|x|)) - max_exponent. A maximum above the largest element saturates."""
    # The float32 exponent field is floor(log2) + 127; it is 0 for subnormals, whose scale clamps to 0 anyway.
    exponent = groups.abs().amax(-1).view(torch.int32) >> 23
    return (exponent - element.max_exponent).clamp(min=0).to(torch.uint8)


def _mse(groups: Tensor, element: Element) -> Tensor:
    """Returns the scale of least squared error; on a tie, that of the ocp rule.

    Only the neighbours of the ocp scale can beat it. Up: one step up nothing saturates, and a finer grid contains
    every point of a coarser one in its range. Down: two steps down the maximum alone loses more to saturation than
    31 elements gain from finer subnormals (closest in e2m1: 2.5^2 against 31 * 0.25^2 in units of the ocp scale).
    """
    ocp = _ocp(groups, element)
    best, least = ocp, _squared_error(groups, ocp, element)
    for step in (-1, 1):
        scales = (ocp.int() + step).clamp(0, e8m0.NAN - 1).to(torch.uint8)
        error = _squared_error(groups, scales, element)
        is_better = error < least
        best, least = torch.where(is_better, scales, best), torch.where(is_better, error, least)
    return best


RULES: dict[str, Callable[[Tensor, Element], Tensor]] = {"ocp": _ocp, "mse": _mse}


def _squared_error(groups: Tensor, scales: Tensor, element: Element) -> Tensor:
    """Returns [..., G] float64, which holds the square of any float32; infinite if a value overflows float32."""
    values = element.decode(_encode_scaled(groups, scales, element)) * e8m0.decode(scales).unsqueeze(-1)
    return (groups.double() - values).square_().sum(-1)


def _encode_scaled(groups: Tensor, scales: Tensor, element: Element) -> Tensor:
    # Byte 254 - b is the reciprocal of byte b; the product is exact, or below 2^-126 and rounds to zero anyway.
    return element.nearest(groups * e8m0.decode(2 * e8m0.BIAS - scales).unsqueeze(-1))


def _split(x: Tensor) -> Tensor:
    """Splits x [..., K] into groups [..., K/32, 32] float32 and checks that all values are finite."""
    columns = x.shape[-1] if x.dim() else 1
    if columns % SIZE:
        raise ValueError(f"K = {columns} is not a multiple of the group size {SIZE}")
    groups = torch.unflatten(_as_float32(x), -1, (columns // SIZE, SIZE))
    is_finite = groups.isfinite()
    if not is_finite.all():
        count = groups.numel() - int(is_finite.sum())
        raise ValueError(f"x is not finite: {count} of its {x.numel()} values are NaN or infinite")
    return groups


def _as_float32(x: Tensor) -> Tensor:
    # float64 would round twice
    if x.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise TypeError(f"cannot encode {x.dtype}: use float32, bfloat16 or float16")
    return x.float()


@functools.cache
def _values(element: Element, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor([element.value(code) for code in range(256)], dtype=torch.float64).to(dtype).to(device)
