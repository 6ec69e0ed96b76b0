"""E2M1, the 4-bit element: 0, 0.5, 1, 1.5, 2, 3, 4, 6; the sign is bit 3."""

from firesteel.formats.group import Element

E2M1 = Element(name="e2m1", exponent_bits=2, mantissa_bits=1, bias=1, max_magnitude=7)

encode = E2M1.encode
decode = E2M1.decode
