"""Elements and scale rules of every format, checked against integers and fractions."""

import bisect
import itertools
import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from firesteel.formats import e2m1, e4m3, group, mxfp6

ELEMENTS = {"e2m1": e2m1.E2M1, "e4m3": e4m3.E4M3, "e3m2": mxfp6.E3M2, "e2m3": mxfp6.E2M3}
EXPONENT_OF_LARGEST = {"e2m1": 2, "e4m3": 8, "e3m2": 4, "e2m3": 2}
HALF_PRECISION = (torch.bfloat16, torch.float16)


def points_of(name):
    """Returns the magnitudes in code order, from the OCP tables: subnormals, then binades, without NaN."""
    exponent_bits, mantissa_bits = int(name[1]), int(name[3])
    steps = 2**mantissa_bits
    bias = 2 ** (exponent_bits - 1) - 1
    subnormals = [Fraction(f, steps) * Fraction(2) ** (1 - bias) for f in range(steps)]
    binades = range(1 - bias, 2**exponent_bits - bias)
    normals = [(1 + Fraction(f, steps)) * Fraction(2) ** e for e in binades for f in range(steps)]
    points = subnormals + normals
    return points[:-1] if name == "e4m3" else points


POINTS = {name: points_of(name) for name in ELEMENTS}
# These fractions have few bits, so they are exact as Python floats, which are faster.
MIDPOINTS = {name: [float((a + b) / 2) for a, b in itertools.pairwise(p)] for name, p in POINTS.items()}


def nearest_code(name, value):
    """Returns the code nearest to an int, Fraction or float of any magnitude."""
    above = bisect.bisect_right(MIDPOINTS[name], abs(value))
    if above and abs(value) == MIDPOINTS[name][above - 1] and above % 2:
        above -= 1
    is_negative = math.copysign(1, value) < 0
    return above + is_negative * 2 ** (int(name[1]) + int(name[3]))


def floor_log2(value):
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    return exponent if Fraction(2) ** exponent <= value else exponent - 1


def ocp_exponent(name, values):
    largest = max(abs(Fraction(v)) for v in values)
    if not largest:
        return -127
    return min(127, max(-127, floor_log2(largest) - EXPONENT_OF_LARGEST[name]))


def ocp_reference(name, values):
    exponent = ocp_exponent(name, values)
    unit = Fraction(2) ** -exponent
    codes = [nearest_code(name, math.copysign(1, v) * 0.0 if not v else Fraction(v) * unit) for v in values]
    return codes, exponent + 127


def squared_errors_of_all_scales(name, values):
    """Returns [255]: the least error of each scale, over the points that float32 can hold."""
    unit = torch.tensor([2.0**e for e in range(-127, 128)], dtype=torch.float64)
    points = torch.tensor([float(p) for p in POINTS[name]], dtype=torch.float64)
    grid = unit[:, None] * points
    magnitudes = values.double().abs()
    # exact, as the unit is a power of two; which way a tie goes does not change its error
    index = torch.bucketize(magnitudes / unit[:, None], torch.tensor(MIDPOINTS[name], dtype=torch.float64))
    chosen = grid.gather(1, index)
    chosen[chosen >= 2.0**128] = math.inf
    return (chosen - magnitudes).square().sum(-1)


def squared_error(name, values, codes, scale):
    points = [*POINTS[name], *[math.nan] * 200]
    sign_bit = 2 ** (int(name[1]) + int(name[3]))
    unit = Fraction(2) ** (scale - 127)
    pairs = zip(values.tolist(), codes.tolist(), strict=True)
    return sum(
        (Fraction(v) - (-1 if code & sign_bit else 1) * points[code % sign_bit] * unit) ** 2 for v, code in pairs
    )


def random_groups(count, seed):
    """Returns float32 [count, 32] over the whole range: all exponents, subnormal groups, sparse, near ties."""
    generator = torch.Generator().manual_seed(seed)
    groups = torch.randn(count, 32, generator=generator, dtype=torch.float64)
    spread = torch.randn(count, 32, generator=generator) * (torch.arange(count) % 5)[:, None]
    centre = torch.randint(-150, 126, (count, 1), generator=generator)
    groups = (groups * 2.0 ** (spread + centre).double()).clamp(-3.4e38, 3.4e38).float()
    groups[1::4] = groups[1::4].bfloat16().float().clamp(-3e38, 3e38)
    groups[2::4, 3:] *= torch.rand(32 - 3, generator=generator) < 0.5
    return groups


def adversarial_groups(name):
    """Returns groups whose best scale is a neighbour of the ocp scale, or whose maximum is at an edge."""
    top = float(POINTS[name][-1])
    step = float(POINTS[name][1])
    largest_binade = 2.0 ** EXPONENT_OF_LARGEST[name]
    for scale in (2.0**-127, 2.0**-126, 2.0**-20, 1.0, 2.0**100, 2.0 ** (127 - EXPONENT_OF_LARGEST[name])):
        for largest in (largest_binade, top, top * 1.07, largest_binade * 1.999, step):
            for rest in (0.0, step / 2, step * 0.75, step, largest * 0.49, largest):
                values = torch.full((32,), rest, dtype=torch.float64)
                values[7] = -largest
                yield (values * scale).clamp(-3.4e38, 3.4e38).float()


@pytest.mark.parametrize("name", ELEMENTS)
class TestElement:
    def test_every_code_decodes_to_its_point(self, name):
        points = [float(p) for p in POINTS[name]]
        sign_bit = 2 ** (int(name[1]) + int(name[3]))
        padding = [math.nan] * (sign_bit - len(points))
        expected = points + padding + [-p for p in points] + padding
        expected += [math.nan] * (256 - len(expected))
        every = torch.arange(256, dtype=torch.uint8)
        for dtype in (torch.float32, torch.float64, *HALF_PRECISION):
            actual = ELEMENTS[name].decode(every, dtype)
            assert actual.dtype == dtype
            torch.testing.assert_close(
                actual.double(), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=0, equal_nan=True
            )
            negative_zero = ELEMENTS[name].decode(torch.tensor([sign_bit], dtype=torch.uint8), dtype)
            assert negative_zero.signbit().all()

    @pytest.mark.parametrize("dtype", HALF_PRECISION, ids=str)
    def test_every_finite_16_bit_float_encodes_to_the_nearest(self, name, dtype):
        x = torch.arange(-32768, 32768, dtype=torch.int16).view(dtype)
        x = x[x.isfinite()]
        expected = [nearest_code(name, v) for v in x.tolist()]
        assert ELEMENTS[name].encode(x).tolist() == expected

    def test_halfway_goes_to_even_and_its_neighbours_do_not(self, name):
        halfway = torch.tensor(MIDPOINTS[name])
        for index, middle in enumerate(halfway):
            below = torch.nextafter(middle, torch.tensor(0.0))
            above = torch.nextafter(middle, torch.tensor(math.inf))
            codes = ELEMENTS[name].encode(torch.stack((below, middle, above))).tolist()
            assert codes == [index, index + index % 2, index + 1]
        sign_bit = 2 ** (int(name[1]) + int(name[3]))
        assert torch.equal(ELEMENTS[name].encode(-halfway), ELEMENTS[name].encode(halfway) | sign_bit)

    def test_beyond_the_largest_saturates(self, name):
        top = float(POINTS[name][-1])
        x = torch.tensor([top, top * 1.001, top * 1.2, top * 2, 3.4e38, math.inf])
        assert ELEMENTS[name].encode(x).unique().tolist() == [len(POINTS[name]) - 1]

    def test_below_half_the_smallest_is_a_signed_zero(self, name):
        sign_bit = 2 ** (int(name[1]) + int(name[3]))
        x = torch.tensor([0.0, 2.0**-149, 2.0**-126, -0.0, -(2.0**-149), -(2.0**-126)])
        assert ELEMENTS[name].encode(x).tolist() == [0, 0, 0, sign_bit, sign_bit, sign_bit]

    def test_nan_is_kept_or_refused(self, name):
        x = torch.tensor([1.0, math.nan, -math.nan])
        if name == "e4m3":
            assert ELEMENTS[name].encode(x).tolist()[1:] == [0x7F, 0x7F]
        else:
            with pytest.raises(ValueError, match=f"{name} has no NaN, but 2 values"):
                ELEMENTS[name].encode(x)

    @pytest.mark.parametrize("dtype", [torch.float64, torch.int32], ids=str)
    def test_other_dtypes_are_refused(self, name, dtype):
        with pytest.raises(TypeError, match=str(dtype)):
            ELEMENTS[name].encode(torch.ones(32, dtype=dtype))


@pytest.mark.parametrize("name", ELEMENTS)
class TestRules:
    def assert_ocp(self, name, groups):
        codes, scales = group.quantize(groups, ELEMENTS[name], "ocp")
        for row, row_codes, row_scale in zip(groups, codes, scales, strict=True):
            assert (row_codes.tolist(), row_scale.item()) == ocp_reference(name, row.tolist())

    def test_ocp_is_bit_exact_on_random_groups(self, name):
        self.assert_ocp(name, random_groups(200, seed=1))

    def test_ocp_is_bit_exact_on_edges(self, name):
        self.assert_ocp(name, torch.stack(list(adversarial_groups(name))))

    def test_ocp_is_bit_exact_on_subnormals(self, name):
        bits = torch.randint(0, 2**23, (40, 32), generator=torch.Generator().manual_seed(5), dtype=torch.int32)
        bits >>= torch.arange(40, dtype=torch.int32)[:, None] % 24
        self.assert_ocp(name, bits.view(torch.float32))

    @pytest.mark.parametrize("exponent", [-126, -110, -1, 0, 1, 100, 127])
    def test_scale_steps_where_the_maximum_reaches_a_power_of_two(self, name, exponent):
        at = torch.zeros(32)
        at[5] = -(2.0**exponent)
        below = torch.nextafter(at, torch.zeros(32))
        _, scales = group.quantize(torch.stack((at, below)), ELEMENTS[name], "ocp")
        expected = [max(0, e - EXPONENT_OF_LARGEST[name] + 127) for e in (exponent, exponent - 1)]
        assert scales.flatten().tolist() == expected

    @pytest.mark.parametrize("rule", group.RULES)
    def test_zeros_get_scale_0_and_keep_their_sign(self, name, rule):
        codes, scales = group.quantize(torch.tensor([0.0] * 16 + [-0.0] * 16), ELEMENTS[name], rule)
        assert scales.tolist() == [0]
        assert codes.tolist() == [0] * 16 + [2 ** (int(name[1]) + int(name[3]))] * 16

    def test_mse_is_never_worse_than_ocp(self, name):
        groups = torch.cat((random_groups(100, seed=2), torch.stack(list(adversarial_groups(name)))))
        results = {rule: group.quantize(groups, ELEMENTS[name], rule) for rule in ("mse", "ocp")}
        steps = set()
        for i, values in enumerate(groups):
            mse, ocp = (squared_error(name, values, c[i], s[i].item()) for c, s in results.values())
            assert mse <= ocp
            steps.add(results["mse"][1][i].item() - results["ocp"][1][i].item())
        # coarse elements are where one saturated maximum is worth a finer grid for the rest
        assert steps == ({-1, 0, 1} if name in ("e2m1", "e2m3") else {0, 1})

    def test_mse_is_the_best_of_all_255_scales(self, name):
        groups = torch.cat((random_groups(80, seed=3), torch.stack(list(adversarial_groups(name))[::3])))
        codes, scales = group.quantize(groups, ELEMENTS[name], "mse")
        for values, row_codes, scale in zip(groups, codes, scales.flatten().tolist(), strict=True):
            chosen = float(squared_error(name, values, row_codes, scale))
            assert chosen <= squared_errors_of_all_scales(name, values).min().item() * (1 + 1e-12)

    @pytest.mark.parametrize("rule", group.RULES)
    def test_largest_float32_stays_finite(self, name, rule):
        x = torch.full((32,), torch.finfo(torch.float32).max)
        codes, scales = group.quantize(x, ELEMENTS[name], rule)
        assert group.dequantize(ELEMENTS[name].decode(codes), scales, torch.float32).isfinite().all()

    @pytest.mark.parametrize("rule", group.RULES)
    def test_representable_groups_survive_a_round_trip(self, name, rule):
        generator = torch.Generator().manual_seed(4)
        width = int(name[1]) + int(name[3])
        codes = torch.randint(0, len(POINTS[name]), (255, 32 * 3), generator=generator)
        codes |= torch.randint(0, 2, codes.shape, generator=generator) << width
        if name == "e4m3":  # 1.875 * 2^k, k < 8, as maximum saturates under ocp: 480 is NaN's
            codes[:, ::32] = 0x7E
        scales = torch.arange(255).clamp(max=254 - EXPONENT_OF_LARGEST[name])[:, None].expand(-1, 3)
        x = group.dequantize(ELEMENTS[name].decode(codes.byte()), scales.byte(), torch.float32)
        again = group.quantize(x, ELEMENTS[name], rule)
        y = group.dequantize(ELEMENTS[name].decode(again[0]), again[1], torch.float32)
        assert torch.equal(y.view(torch.int32), x.view(torch.int32))

    @settings(max_examples=30, deadline=None, database=None)
    @given(data=st.data())
    def test_any_shape_equals_its_groups_one_by_one(self, name, data):
        leading = data.draw(st.lists(st.integers(0, 3), max_size=3))
        shape = (*leading, 32 * data.draw(st.integers(0, 3)))
        float32 = st.floats(width=32, allow_nan=False, allow_infinity=False)
        pool = data.draw(st.lists(float32, min_size=1, max_size=40))
        x = torch.tensor(pool).repeat(math.prod(shape) // len(pool) + 1)[: math.prod(shape)].view(shape)
        codes, scales = group.quantize(x, ELEMENTS[name], "ocp")
        assert codes.shape == shape
        assert scales.shape == (*shape[:-1], shape[-1] // 32)
        self.assert_ocp(name, x.reshape(-1, 32))
        alone, _ = group.quantize(x.reshape(-1, 32), ELEMENTS[name], "ocp")
        assert torch.equal(codes.view(-1, 32), alone)

    @pytest.mark.parametrize("rule", group.RULES)
    @pytest.mark.parametrize("dtype", HALF_PRECISION, ids=str)
    def test_half_precision_input_equals_its_float32(self, name, rule, dtype):
        x = random_groups(64, seed=6).clamp(-6e4, 6e4).to(dtype)
        narrow, wide = (group.quantize(v, ELEMENTS[name], rule) for v in (x, x.float()))
        assert torch.equal(narrow[0], wide[0])
        assert torch.equal(narrow[1], wide[1])

    def test_strided_input_equals_contiguous(self, name):
        x = random_groups(64, seed=7).t()
        strided, contiguous = (group.quantize(v, ELEMENTS[name], "mse") for v in (x, x.contiguous()))
        assert torch.equal(strided[0], contiguous[0])
        assert torch.equal(strided[1], contiguous[1])


def test_unknown_rule_is_an_error_that_lists_the_rules():
    with pytest.raises(ValueError, match="unknown scale rule 'best'; the rules are ocp, mse"):
        group.quantize(torch.zeros(32), e2m1.E2M1, "best")


@pytest.mark.parametrize("columns", [1, 31, 33, 48])
def test_partial_group_is_an_error_that_names_k(columns):
    with pytest.raises(ValueError, match=f"K = {columns} is not a multiple of the group size 32"):
        group.quantize(torch.zeros(2, columns), e2m1.E2M1, "ocp")


def test_scalar_is_an_error():
    with pytest.raises(ValueError, match="not a multiple"):
        group.quantize(torch.tensor(1.0), e2m1.E2M1, "ocp")


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_non_finite_input_is_an_error_that_counts(bad, dtype):
    x = torch.zeros(2, 64, dtype=dtype)
    x[1, 7] = x[0, 63] = bad
    with pytest.raises(ValueError, match="x is not finite: 2 of its 128 values"):
        group.quantize(x, e2m1.E2M1, "ocp")
