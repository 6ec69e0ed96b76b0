"""Plans of the decode kernels and their machine code: grids, shared memory, forbidden instructions."""

import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

from firesteel.device import find_device
from firesteel.kernels.cuda import cache as cuda_cache
from firesteel.kernels.decode.attention_plan import Sharing
from firesteel.kernels.decode.attention_plan import kernel as attention_kernel
from firesteel.kernels.decode.experts_plan import plan_even
from firesteel.kernels.decode.fc1 import expert_sizes
from firesteel.kernels.decode.fc1 import plan as plan_fc1
from firesteel.kernels.decode.fc2 import plan as plan_fc2
from firesteel.kernels.decode.lm_head import plan as plan_lm_head
from firesteel.kernels.decode.o import decode_o
from firesteel.kernels.decode.o import plan as plan_o
from firesteel.kernels.decode.qkv import plan as plan_qkv
from firesteel.kernels.decode.router import kernel as router_kernel
from firesteel.kernels.decode.sample import kernel as sample_kernel
from firesteel.kernels.op.device_code import CudaCode
from firesteel.kernels.op.verdict import disassemble
from firesteel.kernels.proof.prove import list_code, prove_code
from firesteel.kernels.registry import DECODE_OPS
from firesteel.kernels.stream import plan as stream_plan
from firesteel.kernels.stream.build import with_all_arriving, with_delays
from firesteel.kernels.stream.plan import TOKENS, find_machine, machine_of, show_tokens, with_machine, with_sms
from firesteel.kernels.stream.shapes import GPT_OSS, KINDLING
from firesteel.kernels.target import SHARED_LIMIT_BYTES

H200, GB10 = machine_of((9, 0)), machine_of((12, 1))
FLOAT_ATOMIC = re.compile(r"\b(?:atom|red)\.[\w.:]*\.(?:f16|bf16|f32|f64)|\b(?:RED|ATOM[GS]?)\.\S*F(?:16|32|64)")


@pytest.fixture
def kept(monkeypatch, shared_folder):
    """A kernel cache for the whole session, so that kernels are compiled once."""
    monkeypatch.setattr(cuda_cache, "_current", cuda_cache.CubinCache(shared_folder))


def plan_all(machine, sizes, tokens=1):
    """Returns {(layer, whether its weights are packed): plan}."""
    plans = {}
    for is_fp4 in (False, True):
        of_all = {"is_fp4": is_fp4, "tokens": tokens, "hidden": sizes.hidden}
        plans["qkv", is_fp4] = plan_qkv(machine, **of_all, heads=sizes.heads, kv_heads=sizes.kv_heads)
        plans["o", is_fp4] = plan_o(machine, **of_all, columns=sizes.heads * sizes.head_dim)
        plans["lm_head", is_fp4] = plan_lm_head(machine, **of_all, vocabulary=sizes.vocabulary)
    plans["fc1", True] = plan_fc1(machine, tokens=tokens, **expert_sizes(sizes))
    plans["fc2", True] = plan_fc2(machine, tokens=tokens, **expert_sizes(sizes))
    return plans


def every_kernel(machine, sizes, tokens):
    streamed = [planned.kernel for planned in plan_all(machine, sizes, tokens).values()]
    ways = (Sharing(), Sharing(8), Sharing(16, in_memory=True))
    attention = [attention_kernel(machine, sizes.heads, sizes.kv_heads, way) for way in ways]
    return [*streamed, *attention, router_kernel(sizes.experts, sizes.hidden), sample_kernel(sizes.hidden)]


def test_one_token_on_an_h200_has_the_measured_grid():
    sizes = {name: (plan.stream.stages, plan.num_ctas) for name, plan in plan_all(H200, GPT_OSS).items()}
    assert sizes == {
        ("qkv", False): (6, 132),
        ("qkv", True): (5, 132),
        ("o", False): (6, 132),
        ("o", True): (4, 132),
        ("lm_head", False): (8, 132),
        ("lm_head", True): (8, 132),
        ("fc1", True): (7, 132),
        ("fc2", True): (6, 132),
    }


def test_gb10_runs_one_cta_per_sm():
    plans = plan_all(GB10, GPT_OSS)
    assert {plan.num_ctas for plan in plans.values()} == {48}
    assert all(plan.refuse(GB10) is None and plan.stream.stages >= 2 for plan in plans.values())
    assert {plan.kernel.source.defines["CTAS_PER_SM"] for plan in plans.values()} == {1}


def test_small_model_has_one_cta_per_strip():
    plans = plan_all(H200, KINDLING)
    assert (plans["qkv", True].num_ctas, plans["o", False].num_ctas, plans["fc2", True].num_ctas) == (48, 16, 16)


@pytest.mark.parametrize("tokens", [1, 2, 4, 8])
def test_every_plan_for_an_h200_fits(tokens):
    for sizes in (GPT_OSS, KINDLING):
        assert all(plan.refuse(H200) is None for plan in plan_all(H200, sizes, tokens).values())


@pytest.mark.parametrize("capability", [(12, 0), (12, 1)], ids=["rtx5090", "gb10"])
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 8])
def test_every_plan_for_sm12x_fits_with_two_stages(capability, tokens):
    machine = machine_of(capability)
    for name, planned in plan_all(machine, GPT_OSS, tokens).items():
        assert planned.refuse(machine) is None and planned.stream.stages >= 2, name
    even = plan_even(machine, tokens=tokens, hidden=2880, experts=128, active=4)
    assert even.refuse(machine) is None and even.stream.stages >= 2


@pytest.mark.parametrize("target", ["sm_120a", "sm_121a"])
def test_every_number_of_tokens_is_listed_for_sm12x(target):
    for op in DECODE_OPS:
        here, there = ({code.variant for code in list_code(op, name)} for name in (target, "sm_90a"))
        planned = {variant for variant in here if "T=" in variant}
        assert planned == {variant for variant in there if "T=" in variant}
        listed = defaultdict(set)  # tokens by format of weights and activations
        for variant in planned:
            formats, first, last = re.fullmatch(r"\S+ (.*) T=(\d)(?:-(\d))?", variant).groups()
            listed[formats] |= set(range(int(first), int(last or first) + 1))
        assert all(tokens == set(range(1, 9)) for tokens in listed.values()), op.name


@pytest.mark.parametrize("tokens", range(1, 9))
def test_listed_kernel_is_the_one_that_its_tokens_are_launched_with(tokens):
    (count,) = [count for count in TOKENS if count // 2 < tokens <= count]
    first, _, last = show_tokens(count).partition("-")
    assert int(first) <= tokens <= int(last or first)
    launched, listed = (plan_all(GB10, GPT_OSS, number)["o", True].kernel for number in (tokens, count))
    assert launched.source.defines == listed.source.defines


def test_plan_that_does_not_fit_is_refused_with_the_cure():
    tiny = replace(GB10, shared_bytes=40_000)
    packed_o = plan_all(tiny, GPT_OSS, 8)["o", True]
    assert re.search(r"needs \d+ bytes .* for 8 tokens, .* 40000: take fewer tokens", packed_o.refuse(tiny))


def test_plan_that_does_not_fit_is_listed_and_its_proof_says_so(kept, monkeypatch):
    monkeypatch.setitem(SHARED_LIMIT_BYTES, "sm_121a", 40_000)
    codes = [code for code in list_code(decode_o, "sm_121a") if code.variant.endswith("T=5-8")]
    assert len(codes) == 3
    proof = prove_code(decode_o.name, codes[0], "sm_121a")
    assert not proof.fits and "wants" in proof.excess and "sm_121a has 40000" in proof.excess


def test_kernels_of_a_source_are_compiled_once_per_shape():
    one, other = (plan_all(H200, GPT_OSS)["qkv", True].kernel for _ in range(2))
    assert one.source is other.source
    assert (
        plan_all(H200, GPT_OSS, 3)["qkv", True].kernel.source
        is plan_all(H200, GPT_OSS, 4)["qkv", True].kernel.source
    )
    assert one.source is not plan_all(H200, GPT_OSS, 2)["qkv", True].kernel.source


def test_kernels_in_which_all_lanes_arrive_are_separate():
    def find():
        return plan_all(H200, GPT_OSS)["qkv", False].kernel.source

    with with_all_arriving():
        watched = find()
    assert watched is not find() and "ALL_ARRIVE" not in find().defines
    assert watched.defines == {**find().defines, "ALL_ARRIVE": 1}


def test_kernels_can_be_limited_to_few_sms(monkeypatch):
    monkeypatch.setattr(stream_plan, "_read_machine", lambda device: H200)
    device = torch.device("cuda:0")
    with with_sms(4):
        assert find_machine(device) == replace(H200, num_sms=4)
    with with_sms(None):
        assert find_machine(device) == H200


def test_plans_can_be_made_for_another_gpu(monkeypatch):
    monkeypatch.setattr(stream_plan, "_read_machine", lambda device: H200)
    device = torch.device("cuda:0")
    with with_machine(GB10):
        assert find_machine(device) == GB10
        with with_sms(4):
            assert find_machine(device) == replace(GB10, num_sms=4)
    assert find_machine(device) == H200


def test_plans_of_ops_are_kept():
    kernels = every_kernel(H200, GPT_OSS, 3)
    assert all(kernel is other for kernel, other in zip(kernels, every_kernel(H200, GPT_OSS, 3), strict=True))
    with with_delays():
        assert not any(
            kernel is other for kernel, other in zip(kernels, every_kernel(H200, GPT_OSS, 3), strict=True)
        )


def test_rounded_activations_have_separate_kernels_for_packed_weights():
    for op in DECODE_OPS:
        variants = [code.variant for code in list_code(op, "sm_90a")]
        packed = [variant for variant in variants if "mxfp4-weight T" in variant]
        assert [variant for variant in variants if "mxfp8" in variant] == [
            variant.replace("-weight", "-weight mxfp8") for variant in packed
        ], op.name


def test_only_kernels_that_round_hold_conversions_to_e4m3(kept):
    for code in list_code(decode_o, "sm_90a"):
        if code.variant.endswith("mxfp8 T=1") or code.variant.endswith("weight T=1"):
            assert ("e4m3x2" in code.kernel.build("sm_90a").ptx) == ("mxfp8" in code.variant), code.variant


def test_packed_weights_do_not_hide_nan(kept):
    """The engine detects broken logits by their value; a plain maximum would drop a NaN."""
    for op in DECODE_OPS:
        for code in list_code(op, "sm_90a"):
            if code.variant.endswith("mxfp4-weight T=1"):
                ptx = code.kernel.build("sm_90a").ptx
                assert "max.NaN.f32" in ptx and not re.search(r"\b(?:max|min)\.f32", ptx), op.name


def test_older_gpus_are_refused_and_nothing_is_compiled_for_them():
    ampere = replace(find_device("cpu"), name="A100", capability=(8, 0))
    for op in DECODE_OPS:
        assert list_code(op, "sm_80") == []
        assert "compute capability 9.0" in op.implementations[op.order[-1]].needs(ampere)


def assert_sound(op, code, target, few=0):
    """Checks: at most `few` spills, no floating-point atomics, shared memory fits, dependent launch is used."""
    proof, entry = prove_code(op, code, target), code.kernel.build(target)
    assert proof.spills <= few and proof.fits, (proof.op, proof.variant, proof.spills, proof.shared_bytes)
    sass = disassemble(entry.binary.cubin, entry.name) or ""
    assert not FLOAT_ATOMIC.search(entry.ptx) and not FLOAT_ATOMIC.search(sass)
    assert "griddepcontrol.wait" in entry.ptx and "griddepcontrol.launch_dependents" in entry.ptx


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90a", "sm_121a"])
@pytest.mark.parametrize("op", DECODE_OPS, ids=lambda op: op.name)
def test_kernels_for_one_token_compile_without_spills_and_fit(kept, op, target):
    codes = [code for code in list_code(op, target) if "T=" not in code.variant or "T=1" in code.variant]
    assert codes
    for code in codes:
        assert_sound(op.name, code, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["sm_90a", "sm_120a", "sm_121a"])
@pytest.mark.parametrize("op", DECODE_OPS, ids=lambda op: op.name)
def test_kernels_for_any_number_of_tokens_compile_without_spills_and_fit(kept, op, target):
    for code in list_code(op, target):
        assert_sound(op.name, code, target)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [1, 4, 8])
def test_kernels_of_a_small_model_compile_with_and_without_delays(kept, tokens):
    for kernel in every_kernel(H200, KINDLING, tokens):
        assert_sound("kindling", CudaCode(variant=f"cuda {kernel.name}", kernel=kernel), "sm_90a", few=4)
    with with_delays():
        for kernel in every_kernel(H200, KINDLING, tokens):
            assert "nanosleep" in kernel.build("sm_90a").ptx


def test_floating_point_atomics_are_detected():
    lines = [
        "red.global.add.f32 [%rd1], %f1;",
        "atom.shared.add.f16x2 %r1, [%r2], %r3;",
        "RED.E.ADD.F32.FTZ.RN.STRONG.GPU",
    ]
    assert all(FLOAT_ATOMIC.search(line) for line in lines)
    others = ["redux.sync.max.u32 %r1, %r2, -1;", "atom.global.add.u32 %r1, [%rd1], 1;", "REDUX.MAX UR4, R2"]
    assert not any(FLOAT_ATOMIC.search(line) for line in others)
