"""MXFP6: E3M2 or E2M3 elements, one E8M0 scale per 32 elements. For experiments: codes are not packed."""

import torch
from torch import Tensor

from firesteel.formats import group
from firesteel.formats.group import Element

E3M2 = Element(name="e3m2", exponent_bits=3, mantissa_bits=2, bias=3, max_magnitude=31)
E2M3 = Element(name="e2m3", exponent_bits=2, mantissa_bits=3, bias=1, max_magnitude=31)
ELEMENTS = {element.name: element for element in (E3M2, E2M3)}


def quantize(x: Tensor, element: str, rule: str = "ocp") -> tuple[Tensor, Tensor]:
    """Quantizes x [..., K] to codes [..., K] and scales [..., K/32], both uint8. See group.quantize."""
    return group.quantize(x, _named(element), rule)


def dequantize(codes: Tensor, scales: Tensor, element: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """Decodes codes [..., K] and scales [..., K/32] to [..., K]. Does not synchronise.

    Exact in float32 below 2^128, larger products are infinite; narrower dtypes round once.
    Scale 255 and bytes above 63 give NaN.
    """
    group.check_shapes(codes, scales, values_per_byte=1)
    return group.dequantize(_named(element).decode(codes), scales, dtype)


def _named(element: str) -> Element:
    if element not in ELEMENTS:
        raise ValueError(f"unknown mxfp6 element {element!r}; the elements are {', '.join(ELEMENTS)}")
    return ELEMENTS[element]
