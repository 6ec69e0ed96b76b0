"""Picks a token from each row of logits: the most likely, or one drawn from the softmax.

in   DrawOperands
out  token_ids  [R] int64  in 0..V-1, whatever the logits
Gumbel-max: the largest of log-probabilities plus independent noise is a draw from the softmax. On ties the lowest
id wins. A row's token depends on nothing but the row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from firesteel.kernels.noise import LEAST_TEMPERATURE, MOST_TEMPERATURE, gumbel_noise, stream_key, token_steps
from firesteel.kernels.op.device_code import DeviceCode
from firesteel.kernels.op.needs import triton_ready
from firesteel.kernels.op.op import define_op
from firesteel.kernels.op.operands import Operands
from firesteel.kernels.op.profile import SAMPLING, OpProfile
from firesteel.kernels.op.rows import rows_of
from firesteel.kernels.op.sample import Sample
from firesteel.kernels.op.tolerance import exact
from firesteel.kernels.operands.shapes import MOST_DECODED, ModelShapes, WorkloadPart
from firesteel.kernels.ops.fixed_rows import on_cpu
from firesteel.kernels.tiles.launch import power_of_two


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawOperands(Operands):
    logits: Tensor  # [R, V] fp32, -inf for tokens that may not be drawn
    best: Tensor  # [R] fp32, the largest of each row
    temperatures: Tensor  # [R] fp32; 0: the most likely token; else logits are divided by it
    keys: Tensor  # [R] int64, of the streams of random numbers, see noise.py
    steps: Tensor  # [V] int64, token_steps(V)


def _bytes(operands: DrawOperands) -> int:
    rows = operands.best.nbytes + operands.temperatures.nbytes + 2 * operands.keys.nbytes
    return operands.logits.nbytes + rows


@define_op(
    bytes=_bytes,
    tolerance=exact(why="whole numbers; no sample is near a tie, where a logarithm's last place counts"),
    keeps_choice=True,
    profile=OpProfile(SAMPLING, kernels={"draw_part": "", "choose_part": ""}),
    rows=rows_of("logits", "best", "temperatures", "keys"),
)
def draw(operands: DrawOperands) -> Tensor:
    temperatures = operands.temperatures
    is_drawn = temperatures > 0
    divisors = temperatures.clamp(LEAST_TEMPERATURE, MOST_TEMPERATURE).where(is_drawn, 1.0)
    scores = (operands.logits - operands.best[:, None]).div_(divisors[:, None])
    noise = gumbel_noise(operands.keys, operands.steps)
    return scores.add_(noise.where(is_drawn[:, None], 0.0)).argmax(dim=-1)


def _accepts(operands: DrawOperands) -> str | None:
    logits = operands.logits
    if logits.dtype != torch.float32 or logits.stride(-1) != 1:
        return f"reads fp32 logits that lie side by side, not {logits.dtype} with strides {logits.stride()}"
    rows = (operands.best, operands.temperatures, operands.keys)
    if not all(tensor.is_contiguous() for tensor in rows):
        return "wants contiguous largest logits, temperatures and keys"
    return None


@draw.implementation("triton", needs=triton_ready(), accepts=_accepts, is_row_invariant=True)
def triton_draw(operands: DrawOperands) -> Tensor:
    """Draws tokens; the kernel computes `steps` itself."""
    from firesteel.kernels.triton.draw import launch

    return launch(operands.logits, operands.best, operands.temperatures, operands.keys)


@draw.implementation("torch:invariant", needs=on_cpu, is_row_invariant=True)
def torch_draw(operands: DrawOperands) -> Tensor:
    """Draws row by row: torch computes a logarithm at the end of a tensor otherwise than elsewhere."""
    rows = (
        replace(
            operands,
            logits=operands.logits[row : row + 1],
            best=operands.best[row : row + 1],
            temperatures=operands.temperatures[row : row + 1],
            keys=operands.keys[row : row + 1],
        )
        for row in range(len(operands.best))
    )
    drawn = [draw.reference(row) for row in rows]
    return torch.cat(drawn) if drawn else torch.empty_like(operands.keys)


draw.prefer("triton")


@draw.device_code
def device_code(capability: tuple[int, int]) -> Iterator[DeviceCode]:
    from firesteel.kernels.triton import draw as device

    parts = {"part_scores": "*fp32", "part_ids": "*i64"}
    rows = {"logits": "*fp32", "best": "*fp32", "temperatures": "*fp32", "keys": "*i64"}
    count = device.count_parts(201088)
    yield DeviceCode(
        variant="triton parts",
        kernel=device.draw_part,
        signature={**rows, **parts, "stride": "i32:16"},
        constants={"V": 201088, "PARTS": count, "COLUMNS": device.COLUMNS},
        num_warps=device.NUM_WARPS,
    )
    yield DeviceCode(
        variant="triton choice",
        kernel=device.choose_part,
        signature={**parts, "token_ids": "*i64"},
        constants={"PARTS": count, "WIDTH": power_of_two(count)},
        num_warps=1,
    )


@draw.samples
def samples(device: torch.device) -> Iterator[Sample]:
    """Yields greedy rows beside drawn ones, tokens that may not be drawn, temperatures of all sizes."""
    generator = torch.Generator(device).manual_seed(1)
    for rows, vocab_size in ((1, 4099), (3, 1000), (5, 20_000)):
        logits = torch.randn(rows, vocab_size, device=device, generator=generator).mul_(4)
        logits[:, ::7] = float("-inf")
        temperatures = torch.tensor([1.0, 0.0, 0.3, 5.0, 1e-30][:rows], device=device)
        keys = torch.tensor([stream_key(7 + row, 100 * row) for row in range(rows)], device=device)
        operands = DrawOperands(
            logits=logits,
            best=logits.amax(-1),
            temperatures=temperatures,
            keys=keys,
            steps=token_steps(vocab_size, device),
        )
        yield Sample(f"R={rows} V={vocab_size}", (operands,))


@draw.workloads
def workloads(shapes: ModelShapes, m: int, activation: str) -> Iterator[WorkloadPart]:
    """Yields one row per request, for as many requests as are decoded together."""
    size, device = shapes.spec.vocab_size, shapes.device

    def draw_rows() -> tuple[DrawOperands]:
        logits = torch.randn(m, size, generator=shapes.generator, device=device)
        keys = torch.randint(2**62, (m,), generator=shapes.generator, device=device)
        operands = DrawOperands(
            logits=logits,
            best=logits.amax(-1),
            temperatures=torch.ones(m, device=device),
            keys=keys,
            steps=token_steps(size, device),
        )
        return (operands,)

    if m <= MOST_DECODED:
        yield WorkloadPart("", 0.0, 12 * m * size, draw_rows)
