"""Verdicts on machine code: which matrix instructions a compiled kernel holds.

The verdict is read from the machine code, because PTX may promise what the hardware lacks (FP8 `mma.sync` on Hopper
turns into 16-bit HMMA):
  native-fp4  block-scaled instructions on 4-bit weights: kind::mxf4 or kind::mxf4nvf4 (OMMA), or kind::mxf8f6f4
              with block_scale (QMMA.SF) in a kernel that loads 4 bits and widens them, exactly, to E4M3; such a
              kernel has an argument named after the format, `codes` or `..._mxfp4`, in CUDA C++ a name of its own
              with mxfp4 in it
  fp8         other instructions on 8-bit floats, block-scaled or not
  int8        integer instructions on bytes (IMMA): FP4 weights looked up as whole numbers, exactly
  bf16        matrix instructions on 16-bit floats or wider: the fallback where one of the above was asked for
  none        no matrix instruction of these
Triton 3.6's disassembler does not know sm_121a: `sass` is None then, and the verdict is the PTX's.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from firesteel.errors import KernelError
from firesteel.kernels.cuda.binary import CudaEntry

PTX_MATRIX = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\.[\w.:]+")
SASS_MATRIX = re.compile(r"\b(?:[BDHIOQ]G?MMA|UTC[A-Z]*MMA)\b[\w.]*")
# bits of the values multiplied -> PTX that does so; SASS says it in the first letter
PTX_WIDTHS = {
    "4": re.compile(r"kind::mxf4"),
    "8": re.compile(r"f8f6f4|\.e[45]m[23]\b"),
    "byte": re.compile(r"\.[su]8\.[su]8\b|kind::i8"),
    "16": re.compile(r"\.(bf16|f16|tf32|f64)\.(bf16|f16|tf32|f64)|kind::(f16|tf32)"),
}
SASS_WIDTHS = {"O": "4", "Q": "8", "I": "byte", "H": "16", "D": "16"}
NARROW_INTEGERS = re.compile(r"\.[SU]4\b")  # IMMA on four bits
BLOCK_SCALED = re.compile(r"kind::mx\w+\.block_scale")
FOUR_BIT_NAME = re.compile(r"mxfp4|codes")
PATIENCE_S = 600.0  # for a disassembler; only a hung one takes this long, even on a busy machine


@dataclass(frozen=True, slots=True)
class MachineCode:
    """Matrix instructions and resource usage of a compiled kernel."""

    ptx: dict[str, int]  # matrix instruction -> how often it stands in the code
    sass: dict[str, int] | None  # None: Triton's disassembler does not know the target
    registers: int  # per thread
    spills: int  # registers per thread that are spilled to memory
    shared_bytes: int  # static, per CTA, including what the target reserves


def read_code(compiled: Any) -> MachineCode:
    """Reads the machine code of a kernel that Triton compiled, or of a CudaEntry."""
    ptx, sass = _count_matrix(compiled)
    _, cubin, kernel = _parts(compiled)
    registers, stack_bytes, shared_bytes = _read_usage(cubin, kernel)
    return MachineCode(ptx, sass, registers=registers, spills=stack_bytes // 4, shared_bytes=shared_bytes)


def judge_compiled(compiled: Any) -> str:
    """Returns the verdict on a kernel that Triton compiled, or on a CudaEntry."""
    ptx, sass = _count_matrix(compiled)
    return judge(ptx, sass, name_arguments(compiled))


def _count_matrix(compiled: Any) -> tuple[dict[str, int], dict[str, int] | None]:
    """Counts the matrix instructions in PTX and in machine code, as MachineCode has them."""
    ptx, cubin, kernel = _parts(compiled)
    sass = disassemble(cubin, kernel)
    return _count(PTX_MATRIX, "mma", ptx), None if sass is None else count_sass(sass)


def count_sass(sass: str) -> dict[str, int]:
    """Counts the matrix instructions in disassembled machine code."""
    return _count(SASS_MATRIX, "MMA", sass)


def _parts(compiled: Any) -> tuple[str, bytes, str]:
    """Returns the PTX, the cubin and the kernel's name."""
    if isinstance(compiled, CudaEntry):
        return compiled.ptx, compiled.binary.cubin, compiled.name
    return compiled.asm["ptx"], compiled.asm["cubin"], compiled.metadata.name


def _count(pattern: re.Pattern[str], word: str, text: str) -> dict[str, int]:
    """Counts matches line by line: one search of the whole text would hold the GIL for as long as it takes.

    `word` is in every match, so that lines without it are skipped.
    """
    lines = (line for line in text.splitlines() if word in line)
    return dict(Counter(instruction for line in lines for instruction in pattern.findall(line)))


def name_arguments(compiled: Any) -> list[str]:
    """Returns the argument names; CUDA C++ does not keep them, so there it is the kernel's own name."""
    return [compiled.name] if isinstance(compiled, CudaEntry) else list(compiled.src.fn.arg_names)


def judge(ptx: Iterable[str], sass: Iterable[str] | None, arguments: Iterable[str]) -> str:
    """Returns the verdict, given a kernel's matrix instructions and the names of its arguments."""
    if sass is None:
        widths = {width for text in ptx for width, kinds in PTX_WIDTHS.items() if kinds.search(text)}
    else:
        wide = [text.removeprefix("UTC") for text in sass if not NARROW_INTEGERS.search(text)]
        widths = {SASS_WIDTHS.get(text[0], "bit") for text in wide}
    if "16" in widths and widths & {"4", "8"}:
        return "bf16"  # a part of it fell back
    if "4" in widths:
        return "native-fp4"
    if "8" in widths:
        is_scaled = any(BLOCK_SCALED.search(instruction) for instruction in ptx)
        return "native-fp4" if is_scaled and any(map(FOUR_BIT_NAME.search, arguments)) else "fp8"
    if "byte" in widths:
        return "int8"
    return "bf16" if "16" in widths else "none"


def disassemble(cubin: bytes, kernel: str) -> str | None:
    """Disassembles one kernel of the cubin; None if nvdisasm does not know the target."""
    from triton import knobs

    done = _run(knobs.nvidia.nvdisasm.path, "--print-code", cubin=cubin)
    if "Cannot decode architecture" in done.stderr:
        return None
    if done.returncode:
        raise KernelError(f"nvdisasm failed: {done.stderr}")
    return _section(done.stdout, kernel)


def _read_usage(cubin: bytes, kernel: str) -> tuple[int, ...]:
    """Returns registers, bytes of stack (spills, and arrays indexed by run-time values) and of shared memory."""
    from triton import knobs

    done = _run(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin=cubin)
    usage = re.search(rf"Function {re.escape(kernel)}:\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)", done.stdout)
    if usage is None:
        raise KernelError(f"cuobjdump gave no resource usage of {kernel}: {done.stdout}{done.stderr}")
    return tuple(map(int, usage.groups()))


def _section(sass: str, kernel: str) -> str:
    section = split_sections(sass).get(f".text.{kernel}")
    if section is None:
        raise KernelError(f"nvdisasm shows no code of {kernel}")
    return section


def split_sections(sass: str) -> dict[str, str]:
    """Splits what nvdisasm prints into its sections, by name."""
    head = re.compile(r"\s*\.section\s+(\S+?),")
    lines = sass.splitlines()
    heads = [number for number, line in enumerate(lines) if ".section" in line and head.match(line)]
    sections = {}
    for number, end in pairwise([*heads, len(lines)]):
        if (section := head.match(lines[number])) is not None:
            sections[section[1]] = "\n".join(lines[number:end])
    return sections


def _run(*command: str, cubin: bytes) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        try:
            return subprocess.run([*command, path], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        except subprocess.TimeoutExpired as error:
            raise KernelError(f"{Path(command[0]).name} was not done in {PATIENCE_S:.0f} s") from error
