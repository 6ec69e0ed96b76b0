"""Single instructions compared with their definition: emulated, and on a GPU as kernels use them."""

import functools
import shutil
import struct
from pathlib import Path

import pytest
import torch

from firesteel.kernels.cuda.source import CSRC, CudaSource

OWN = Path(__file__).with_name("emulator")
WHICH = (
    "permute",
    "narrow",
    "round",
    "extremes",
    "transpose",
    "multiply",
    "multiply bytes",
    "share",
    "multiply pairs",
    "load",
)
INFINITY, NAN = float("inf"), float("nan")


@pytest.fixture(params=["emulated", pytest.param("gpu", marks=pytest.mark.gpu)])
def execute(request, kernel_cache, tmp_path):
    """execute(which, words [CTAs, 32, up to 6]) -> [CTAs, 32, 4] int32."""
    device = "cuda" if request.param == "gpu" else "cpu"
    for place, name in ((OWN, "single.cu"), (CSRC, "instructions.cuh")):
        shutil.copy(place / name, tmp_path)
    kernel = CudaSource("single.cu", folder=tmp_path).kernel("single", threads=32)
    prepare = kernel.prepare
    if request.param == "emulated":
        emulator = request.getfixturevalue("emulator")
        prepare = functools.partial(emulator.emulated_prepare, kernel)

    def run(which, words):
        given = torch.nn.functional.pad(words, (0, 6 - words.shape[-1])).int().to(device)
        result = torch.zeros(*given.shape[:2], 4, dtype=torch.int32, device=device)
        args = (given.contiguous(), result, WHICH.index(which))
        prepare(grid=(len(given),), args=args)()
        return result.cpu()

    return run


def draw_words(*shape, seed=1):
    """Returns random bits."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-(1 << 31), 1 << 31, shape, generator=generator).int()


def by_warps(values):
    """Returns [N] fp32 in pairs, as words [CTAs, 32, 2]; the last ones are repeated."""
    words = torch.cat([values, values[-1:].expand(-len(values) % 64)]).view(torch.int32)
    return words.view(-1, 32, 2)


def test_bytes_are_permuted_as_in_python(execute):
    words = draw_words(8, 32, 3)
    actual = execute("permute", words)[..., 0]
    for (low, high, choice), word in zip(words.flatten(0, 1).tolist(), actual.flatten().tolist(), strict=True):
        table = struct.pack("<ii", low, high)
        expected = []
        for place in range(4):
            digit = choice >> 4 * place & 15
            byte = table[digit & 7]
            expected.append((255 if byte & 128 else 0) if digit & 8 else byte)
        assert struct.pack("<i", word) == bytes(expected)


def test_floats_become_the_nearest_bf16(execute):
    ties = torch.arange(0x3F80_0000, 0x3F90_0000, 0x4000, dtype=torch.int32).view(torch.float32)
    edges = torch.tensor([0.0, -0.0, INFINITY, -INFINITY, NAN, 3.4e38, -3.4e38, 1e-40, 9.2e-41])
    values = torch.cat([ties, -ties, edges, draw_words(4096).view(torch.float32)])
    words = by_warps(values)
    actual = execute("narrow", words)[..., 0].contiguous().view(torch.bfloat16).float()
    expected = words.view(torch.float32).flatten().bfloat16().float()
    torch.testing.assert_close(actual.flatten(), expected, rtol=0, atol=0, equal_nan=True)


def test_floats_become_the_nearest_e4m3_at_most_its_largest(execute):
    every = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    every = every[every.isfinite()]
    between = (every.sort().values[1:] + every.sort().values[:-1]) / 2
    values = torch.cat([every, between, between * (1 + 1e-6), between * (1 - 1e-6), torch.tensor([1e-30, NAN])])
    values = torch.cat([values, torch.tensor([449.0, 464.0, 1e6, INFINITY, -INFINITY])])
    words = by_warps(values)
    actual = execute("round", words)
    expected = words.view(torch.float32).clamp(-448, 448).to(torch.float8_e4m3fn)
    torch.testing.assert_close(
        actual[..., :2].contiguous().view(torch.float32), expected.float(), rtol=0, atol=0, equal_nan=True
    )
    codes = torch.stack((actual[..., 2] & 255, actual[..., 2] >> 8), dim=-1).to(torch.uint8)
    is_number = ~expected.isnan()  # the sign of a NaN is not defined
    assert torch.equal(codes[is_number], expected.view(torch.uint8)[is_number])
    assert (codes[~is_number] & 127 == 127).all()


def test_nan_is_larger_and_smaller_than_all_numbers(execute):
    some = torch.tensor([1.0, -2.0, 0.0, INFINITY, -INFINITY, NAN])
    pairs = by_warps(torch.cartesian_prod(some, some).flatten())
    actual = execute("extremes", pairs)[..., :2].contiguous().view(torch.float32)
    one, other = pairs.view(torch.float32).unbind(-1)
    expected = torch.stack([torch.maximum(one, other), torch.minimum(one, other)], -1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


def test_matrices_are_transposed(execute):
    words = draw_words(3, 32, 1)
    actual = execute("transpose", words)[..., :1].contiguous()
    matrices = words.contiguous().view(torch.int16).view(3, 8, 8)
    assert torch.equal(actual.view(torch.int16).view(3, 8, 8), matrices.mT)


def test_matrices_are_loaded_by_rows(execute):
    """A lane gives the 16 bytes of one row, and receives a pair of each of four matrices."""
    words = draw_words(3, 32, 4)
    matrices = words.contiguous().view(3, 4, 8, 4)  # CTA, matrix, row, pair
    assert torch.equal(execute("load", words), matrices.permute(0, 2, 3, 1).reshape(3, 32, 4))


def test_pairs_are_multiplied_with_subnormal_numbers(execute):
    """An E2M1 code in bf16 is a value times 2^-126: the smallest is subnormal, products with 2^126 are exact."""
    values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]) * 2.0**-126
    scales = torch.tensor([2.0**126, 2.0**94, 2.0**110, 1.0])
    pairs = torch.cartesian_prod(torch.cat([values, -values]), scales).bfloat16()
    pairs = torch.cat([pairs, pairs.flip(0)], dim=1)[:, [0, 2, 1, 3]].contiguous()  # two factors, then two others
    given = pairs.view(torch.int32).view(-1, 32, 2)
    actual = execute("multiply pairs", given)[..., :1].contiguous().view(torch.bfloat16).float()
    expected = (pairs[:, :2].float() * pairs[:, 2:].float()).view(actual.shape)
    assert torch.equal(actual, expected)


def lay_out(a, b, kind):
    """Returns the words of each lane for A [N, 16, columns] and B [N, columns, 8], as mma reads them."""
    half = a.shape[2] // 2
    rows = a.unflatten(1, (2, 8)).unflatten(3, (2, 4, -1))  # N, row / 8, row % 8, half, lane % 4, of a word
    of_a = rows.permute(0, 2, 4, 3, 1, 5).flatten(1, 2).flatten(2, 3)  # N, lane, 2 half + row / 8, of a word
    of_b = b.mT.unflatten(2, (2, 4, -1)).permute(0, 1, 3, 2, 4).flatten(1, 2)
    assert of_a.shape[2:] == (4, half // 4) and of_b.shape[2:] == (2, half // 4)
    return torch.cat([of_a, of_b], 2).to(kind).contiguous().view(torch.int32).squeeze(-1)


@pytest.mark.parametrize(
    ("which", "columns", "largest", "kind", "result"),
    [("multiply", 16, 9, torch.bfloat16, torch.float32), ("multiply bytes", 32, 128, torch.int8, torch.int32)],
    ids=["bf16", "bytes"],
)
def test_products_are_matrix_products(which, columns, largest, kind, result, execute):
    """Multiplies integers, so that sums are exact in any order; they are added to 1, 2, 3 and 4."""
    generator = torch.Generator().manual_seed(1)
    shape_a, shape_b = (5, 16, columns), (5, columns, 8)
    a, b = (torch.randint(-largest, largest, shape, generator=generator) for shape in (shape_a, shape_b))
    actual = execute(which, lay_out(a, b, kind)).view(result).long() - torch.arange(1, 5)
    product = (a @ b).unflatten(1, (2, 8)).unflatten(3, (4, 2))  # N, row / 8, row % 8, lane % 4, column % 2
    assert torch.equal(actual, product.permute(0, 2, 3, 1, 4).flatten(3).flatten(1, 2))


def test_lanes_exchange_values(execute):
    words = draw_words(1, 32, 1)
    values = words.flatten().tolist()
    actual = execute("share", words)[0]
    assert actual[:, 0].tolist() == [values[lane ^ 5] for lane in range(32)]
    odd = sum((value & 1) << lane for lane, value in enumerate(values))
    same = [sum(((other & 3) == (value & 3)) << lane for lane, other in enumerate(values)) for value in values]
    unsigned = actual.long() & 0xFFFFFFFF
    assert unsigned[:, 1].tolist() == [odd] * 32 and unsigned[:, 2].tolist() == same
    assert unsigned[:, 3].tolist() == [max(value & 0xFFFFFFFF for value in values)] * 32
