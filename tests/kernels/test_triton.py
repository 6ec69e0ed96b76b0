"""Every Triton implementation compared with its reference: odd sizes interpreted, real sizes on a GPU."""

from dataclasses import fields, is_dataclass, replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.ops.linear import linear
from firesteel.kernels.ops.linear_operands import LinearOperands
from firesteel.kernels.ops.rms_norm import RmsNormOperands, rms_norm
from firesteel.kernels.ops.rms_norm_fed import RmsNormFedOperands
from firesteel.kernels.ops.rope_kv_write import RopeKvWriteOperands, rope_kv_write
from firesteel.kernels.ops.route import RouteOperands, route
from firesteel.kernels.proof.verify import verify
from firesteel.kernels.registry import ALL_OPS, DECODE_OPS
from firesteel.kernels.rope import RopeSpec, rope_table

CPU = torch.device("cpu")
INTERPRETED_BYTES = 4e6
TOKEN_COUNTS = (1, 2, 3, 7, 16, 63, 64, 65, 255, 257, 320, 512, 1000, 4096, 8192)
OPS = {op.name: op for op in ALL_OPS}
WITH_TRITON = [op for op in ALL_OPS if any(name.partition(":")[0] == "triton" for name in op.implementations)]


def normal(*shape, dtype=torch.bfloat16, device=CPU, seed=1):
    generator = torch.Generator(device).manual_seed(seed + sum(shape))
    return torch.randn(*shape, device=device, generator=generator).to(dtype)


def rms_norm_case(tokens, hidden, dtype=torch.bfloat16, device=CPU, spare=0):
    """Draws a sample; `spare` columns after each row make it a slice of a wider matrix."""
    x, update = (normal(tokens, hidden + spare, dtype=dtype, device=device, seed=s)[:, :hidden] for s in (1, 2))
    label = f"T={tokens} H={hidden} {dtype} spare={spare}"
    operands = RmsNormOperands(residual=x, update=update, weight=normal(hidden, device=device), eps=1e-5)
    return Sample(label, (operands,))


def rms_norm_fed_case(activation, *sizes, **options):
    plain = rms_norm_case(*sizes, **options)
    (norm,) = plain.args
    operands = RmsNormFedOperands(
        residual=norm.residual, update=norm.update, weight=norm.weight, eps=norm.eps, activation=activation
    )
    return Sample(f"{plain.label} {activation}", (operands,))


def heads_of_qkv(tokens, q_heads, kv_heads, dim, dtype=torch.bfloat16, device=CPU):
    """Returns q, k and v as the model passes them: slices of one matrix."""
    qkv = normal(tokens, q_heads + 2 * kv_heads, dim, dtype=dtype, device=device)
    return qkv.split([q_heads, kv_heads, kv_heads], dim=1)


def rope_kv_write_case(
    tokens,
    q_heads=64,
    kv_heads=8,
    dim=64,
    size=64,
    dtype=torch.bfloat16,
    pages=torch.bfloat16,
    device=CPU,
    scales=(),
):
    """Writes into pages that are not empty, including the last slot. A few values are too large for fp8.

    With `scales` of keys and of values, what is clipped is counted.
    """
    q, k, v = heads_of_qkv(tokens, q_heads, kv_heads, dim, dtype, device)
    v = v * torch.where(normal(*v.shape, dtype=torch.float32, device=device, seed=5) > 2, 300, 1)
    table = rope_table(RopeSpec(theta=150000.0, factor=32.0), dim, 5000, device)
    positions = torch.randint(5000, (tokens,), generator=torch.Generator().manual_seed(1)).to(device)
    count = -(-tokens // size) + 1
    held = [normal(count, kv_heads, size, dim, device=device, seed=seed).to(pages) for seed in (3, 4)]
    order = torch.randperm(count * size - 1, generator=torch.Generator().manual_seed(1))
    slots = torch.cat((torch.tensor([count * size - 1]), order))[:tokens].to(device)
    label = f"T={tokens} Q={q_heads} K={kv_heads} D={dim} S={size} {dtype} {pages} {scales}"
    operands = RopeKvWriteOperands(
        q=q, k=k, v=v, positions=positions, table=table, k_pages=held[0], v_pages=held[1], slots=slots
    )
    if scales:
        counter = torch.full((1,), 7, device=device)
        operands = replace(operands, key_scale=scales[0], value_scale=scales[1], clipped=counter)
    return Sample(label, (operands,))


def route_case(tokens, experts=128, hidden=2880, active=4, device=CPU):
    """Draws logits that differ by a unit, so that rounding cannot change the choice."""
    order = torch.rand(tokens, experts, generator=torch.Generator().manual_seed(1)).argsort().to(device)
    x = torch.zeros(tokens, hidden, device=device)
    x[:, -experts:] = order - experts / 2
    weight = torch.zeros(experts, hidden, device=device)
    weight[:, -experts:] = torch.eye(experts, device=device)
    bias = normal(experts, device=device).clamp(-1, 1) * 0.25
    operands = RouteOperands(x=x.bfloat16(), weight=weight.bfloat16(), bias=bias, active=active)
    return Sample(f"T={tokens} E={experts} A={active}", (operands,))


def linear_case(tokens, rows, columns, dtype=torch.bfloat16, device=CPU, spare=0, bias=True):
    x = normal(tokens, columns + spare, dtype=dtype, device=device)[:, :columns]
    weight = normal(rows, columns + spare, dtype=dtype, device=device, seed=2)[:, :columns] * columns**-0.5
    label = f"T={tokens} {rows}x{columns} {dtype} spare={spare} bias={bias}"
    offsets = normal(rows, dtype=dtype, device=device, seed=3) if bias else None
    return Sample(label, (LinearOperands(x=x, weight=weight, bias=offsets),))


FIRST_NORM = {"residual": normal(3, 2880), "weight": normal(2880), "eps": 1e-5}
ODD = {
    "rms_norm": [
        rms_norm_case(2, 2880, spare=64),
        rms_norm_case(3, 97),
        rms_norm_case(2, 90, dtype=torch.float32),
        rms_norm_case(0, 96),
        Sample("first", (RmsNormOperands(**FIRST_NORM),)),
    ],
    "rms_norm_fed": [
        rms_norm_fed_case("mxfp8", 2, 2880, spare=64),
        rms_norm_fed_case("bf16", 3, 96),
        rms_norm_fed_case("mxfp4", 2, 4096),
        rms_norm_fed_case("mxfp4", 0, 96),
        Sample("first", (RmsNormFedOperands(**FIRST_NORM, activation="mxfp4"),)),
    ],
    "quantize_mxfp8": [
        Sample("T=5 K=2880", (normal(5, 2880),)),
        Sample("T=9 K=32", (normal(9, 32, dtype=torch.float16),)),
        Sample("T=3 K=4096, spare", (normal(3, 4160, dtype=torch.float32)[:, :4096],)),
        Sample("T=0", (normal(0, 96),)),
    ],
    "rope_kv_write": [
        rope_kv_write_case(2),
        rope_kv_write_case(9, 5, 3, 48, 16),
        rope_kv_write_case(1, 2, 1, 2, 16),
        rope_kv_write_case(17, 17, 2, 32, 16, dtype=torch.float32, pages=torch.float32),
        rope_kv_write_case(5, 4, 2, 64, 16, pages=torch.float8_e4m3fn),
        rope_kv_write_case(5, 4, 2, 64, 16, pages=torch.float8_e4m3fn, scales=(1.0, 1.0)),
        rope_kv_write_case(3, 4, 17, 48, 16, pages=torch.float8_e4m3fn, scales=(0.003, 0.7)),
        rope_kv_write_case(3, 4, 17, 32, 16, dtype=torch.float32, pages=torch.float16),
        rope_kv_write_case(0),
    ],
    "route": [
        route_case(1, 32),
        route_case(2, 5, 96, 3),
        route_case(16, 4, 100),
        route_case(17, 33, 2880),
        route_case(70, 128, 160, 1),
        route_case(0, 8, 96),
    ],
    "linear": [
        linear_case(1, 9, 2880),
        linear_case(1, 5, 4096, spare=32, bias=False),
        linear_case(1, 515, 70),
        linear_case(2, 33, 2880),
        linear_case(7, 31, 4096, spare=16),
        linear_case(8, 65, 97, bias=False),
        linear_case(17, 70, 2880),
        linear_case(63, 65, 100, dtype=torch.float16),
        linear_case(129, 130, 72),
        linear_case(0, 33, 96),
    ],
}


@pytest.mark.parametrize("name", ODD)
def test_interpreted_kernels_match_the_reference_on_odd_sizes(name, interpret):
    op = OPS[name]
    checks = interpret(op, ODD[name])
    assert len(checks) == len(ODD[name]) * sum(name.partition(":")[0] == "triton" for name in op.implementations)


@pytest.mark.slow
@pytest.mark.parametrize("op", WITH_TRITON, ids=lambda op: op.name)
def test_interpreted_kernels_match_the_reference_on_every_small_sample(op, interpret):
    """Larger samples would take the interpreter minutes; a GPU runs all of them."""
    interpret(op, [sample for sample in op.make_samples(CPU) if op.bytes(*sample.args) < INTERPRETED_BYTES])


def test_every_op_but_those_for_decode_has_a_triton_implementation():
    assert [op for op in ALL_OPS if op not in DECODE_OPS] == WITH_TRITON


def test_route_takes_the_lowest_of_equal_experts(call_interpreted):
    """torch.topk leaves the order of ties open, so the reference cannot say."""
    weight = torch.zeros(9, 96).bfloat16()
    tied = RouteOperands(x=normal(2, 96), weight=weight, bias=torch.ones(9).bfloat16(), active=4)
    bias = torch.tensor([0.0, 3, 1, 3, 1, 3, 2, 2]).bfloat16()
    mixed = RouteOperands(x=normal(17, 96), weight=weight[:8], bias=bias, active=5)
    samples = [Sample("all equal", (tied,)), Sample("some equal", (mixed,))]
    (ids, weights), (mixed_ids, _) = call_interpreted(route, "triton", samples)
    assert ids.tolist() == [[0, 1, 2, 3]] * 2 and torch.equal(weights, torch.full((2, 4), 0.25))
    assert mixed_ids.tolist() == [[1, 3, 5, 6, 7]] * 17


def test_route_never_points_outside_the_experts(call_interpreted):
    x = torch.full((2, 96), float("nan")).bfloat16()
    operands = RouteOperands(x=x, weight=normal(5, 96), bias=normal(5), active=4)
    ((ids, weights),) = call_interpreted(route, "triton", [Sample("NaN", (operands,))])
    assert ids.min() >= 0 and ids.max() < 5 and weights.isnan().all()


def test_linear_keeps_infinities_and_nan_to_their_rows(call_interpreted):
    weight = normal(40, 96)
    weight[3, 95], weight[39, 0] = float("inf"), float("nan")
    samples = [
        Sample(f"T={tokens}", (LinearOperands(x=torch.ones(tokens, 96).bfloat16(), weight=weight),))
        for tokens in (1, 5)
    ]
    for y in call_interpreted(linear, "triton:gemv", samples):
        assert (y[:, 3] == float("inf")).all() and y[:, 39].isnan().all()
        assert y[:, [*range(3), *range(4, 39)]].isfinite().all()


def test_an_error_in_the_child_is_reported_with_its_traceback(interpret):
    with pytest.raises(AssertionError, match=r"Traceback[\s\S]*AttributeError"):
        interpret(rms_norm, [Sample("no operands", (normal(1, 96),))])


def test_kernel_that_accepts_no_sample_is_reported(interpret):
    with pytest.raises(AssertionError, match=r"linear: took no sample: \{'triton:gemv'\}"):
        interpret(linear, [linear_case(9, 16, 16)])


def test_a_wrong_result_is_reported(interpret):
    """A table of one angle violates the contract: the reference broadcasts it, the kernel reads past it."""
    (operands,) = rope_kv_write_case(2, 2, 2, 32).args
    sample = Sample("one angle", (replace(operands, positions=torch.tensor([0, 1]), table=torch.ones(2, 2)),))
    with pytest.raises(AssertionError, match=r"triton on one angle: result 0: worst nan"):
        interpret(rope_kv_write, [sample])


@pytest.mark.gpu
@pytest.mark.parametrize("op", ALL_OPS, ids=lambda op: op.name)
def test_kernels_match_the_reference_on_the_gpu(op):
    device = find_device("cuda")
    assert_all_pass(verify(op, device, op.make_samples(device.torch_device)))


@pytest.mark.gpu
@pytest.mark.parametrize("tokens", TOKEN_COUNTS)
def test_kernels_match_the_reference_at_gpt_oss_shapes(tokens):
    device = find_device("cuda")
    on = {"device": device.torch_device}
    cases = {
        "rms_norm": [rms_norm_case(tokens, 2880, **on)],
        "rms_norm_fed": [rms_norm_fed_case(activation, tokens, 2880, **on) for activation in ACTIVATIONS],
        "quantize_mxfp8": [Sample(f"T={tokens}", (normal(tokens, 2880, **on),))],
        "rope_kv_write": [rope_kv_write_case(tokens, **on)],
        "route": [route_case(tokens, 128, **on), route_case(tokens, 32, **on)],
        "linear": [linear_case(tokens, 5120, 2880, **on), linear_case(tokens, 2880, 4096, **on)],
    }
    if device.capability >= (8, 9):
        for scales in ((), (0.25, 4.0), (0.003, 0.7)):
            cases["rope_kv_write"].append(
                rope_kv_write_case(tokens, pages=torch.float8_e4m3fn, scales=scales, **on)
            )
    if tokens <= 65:
        cases["linear"].append(linear_case(tokens, 201088, 2880, bias=False, **on))
    for name, samples in cases.items():
        assert_all_pass(verify(OPS[name], device, samples))


@pytest.mark.gpu
@pytest.mark.parametrize("name", ODD)
def test_kernels_match_the_reference_on_odd_sizes_on_the_gpu(name):
    device = find_device("cuda")
    moved = [
        Sample(sample.label, tuple(to(arg, device.torch_device) for arg in sample.args)) for sample in ODD[name]
    ]
    assert_all_pass(verify(OPS[name], device, moved))


def to(arg, device):
    if is_dataclass(arg):
        return replace(arg, **{part.name: to(getattr(arg, part.name), device) for part in fields(arg)})
    return arg.to(device) if isinstance(arg, torch.Tensor) else arg


def assert_all_pass(checks):
    checks = list(checks)
    assert any(check.refusal is None for check in checks)
    assert [check for check in checks if check.failure] == []
