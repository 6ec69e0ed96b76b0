"""Compiles device code for a GPU that need not be present, and says which matrix instructions it became.

The verdict is read from the machine code, because PTX may promise what the hardware lacks (FP8 `mma.sync` on Hopper
turns into 16-bit HMMA):
  native-fp4  block-scaled instructions on 4-bit weights: kind::mxf4 or kind::mxf4nvf4 (OMMA), or kind::mxf8f6f4
              with block_scale (QMMA.SF) in a kernel that loads 4 bits and widens them, exactly, to E4M3; such a
              kernel has an argument named after the format, `codes` or `..._mxfp4`
  fp8         other instructions on 8-bit floats, block-scaled or not
  bf16        matrix instructions on 16-bit floats or wider: the fallback where one of the above was asked for
  none        no matrix instruction
Triton 3.6's disassembler does not know sm_121a: `sass` is None then, and the verdict is the PTX's.
Knows no particular op and runs nothing.
"""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import difflib
import importlib.util
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.activation import ACTIVATIONS
from firesteel.kernels.op import DeviceCode, Op
from firesteel.kernels.requirement import Requirement
from firesteel.kernels.triton_ready import interpreting

# target -> shared memory a block may opt in to
SHARED_LIMIT_BYTES = {
    "sm_80": 166_912, "sm_90a": 232_448, "sm_100a": 232_448, "sm_120a": 101_376, "sm_121a": 101_376,
}  # fmt: skip
PTX_MATRIX = re.compile(r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\.[\w.:]+")
SASS_MATRIX = re.compile(r"\b(?:[BDHIOQ]G?MMA|UTC[A-Z]*MMA)\b[\w.]*")
# bits of the values multiplied -> PTX that does so; SASS says it in the first letter
PTX_WIDTHS = {
    "4": re.compile(r"kind::mxf4"),
    "8": re.compile(r"f8f6f4|\.e[45]m[23]\b"),
    "16": re.compile(r"\.(bf16|f16|tf32|f64)\.(bf16|f16|tf32|f64)|kind::(f16|tf32)"),
}
SASS_WIDTHS = {"O": "4", "Q": "8", "H": "16", "D": "16"}
BLOCK_SCALED = re.compile(r"kind::mx\w+\.block_scale")
FOUR_BIT_NAME = re.compile(r"mxfp4|codes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    op: str
    variant: str
    target: str
    verdict: str
    ptx: dict[str, int]  # matrix instruction -> how often it stands in the code
    sass: dict[str, int] | None  # None: Triton's disassembler does not know the target
    registers: int  # a thread
    spills: int  # registers a thread keeps in memory for want of room
    shared_bytes: int  # a block
    compiler: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def fits(self) -> bool:
        """Whether a block's shared memory is within the target's limit."""
        return self.shared_bytes <= SHARED_LIMIT_BYTES[self.target]


def prove(ops: Iterable[Op[Any, Any]], target: str) -> list[Proof]:
    """Of everything the ops say they launch on the target."""
    return [prove_code(op.name, code, target) for op in ops for code in list_code(op, target)]


def list_code(op: Op[Any, Any], target: str) -> list[DeviceCode]:
    """What the op says it launches on the target."""
    capability = divmod(_architecture(target), 10)
    _require_compiler()
    return list(op.make_device_code(capability)) if op.make_device_code else []


def prove_code(op: str, code: DeviceCode, target: str) -> Proof:
    _require_compiler()
    import triton

    try:
        compiled = _compile(code, _architecture(target))
    except Exception as error:
        error.add_note(f"compiling {op} {code.variant} for {target} with Triton {triton.__version__}")
        raise
    ptx = dict(Counter(PTX_MATRIX.findall(compiled.asm["ptx"])))
    sass_text, registers, stack_bytes = _disassemble(compiled.asm["cubin"])
    sass = None if sass_text is None else dict(Counter(SASS_MATRIX.findall(sass_text)))
    return Proof(
        op=op, variant=code.variant, target=target, verdict=judge(ptx, sass, code.signature), ptx=ptx, sass=sass,
        registers=registers, spills=stack_bytes // 4, shared_bytes=compiled.metadata.shared,
        compiler=f"triton {triton.__version__}",
    )  # fmt: skip


def judge_compiled(compiled: Any) -> str:
    """The verdict on a kernel that Triton has compiled and run here."""
    sass, _, _ = _disassemble(compiled.asm["cubin"])
    ptx = PTX_MATRIX.findall(compiled.asm["ptx"])
    names = compiled.src.fn.arg_names
    return judge(ptx, None if sass is None else SASS_MATRIX.findall(sass), names)


def judge(ptx: Iterable[str], sass: Iterable[str] | None, arguments: Iterable[str]) -> str:
    """The verdict on a kernel's matrix instructions and the names of its arguments."""
    if sass is None:
        widths = {width for one in ptx for width, kinds in PTX_WIDTHS.items() if kinds.search(one)}
    else:
        widths = {SASS_WIDTHS.get(one.removeprefix("UTC")[0], "integer") for one in sass}
    if "4" in widths:
        return "native-fp4"
    if "8" in widths:
        is_scaled = any(BLOCK_SCALED.search(instruction) for instruction in ptx)
        return "native-fp4" if is_scaled and any(map(FOUR_BIT_NAME.search, arguments)) else "fp8"
    return "bf16" if "16" in widths else "none"


def check(proofs: Sequence[Proof], required: Iterable[Requirement]) -> None:
    """Raises unless each requirement is met by a proof, all that meet it within their target's shared memory."""
    for one in required:
        named = [proof for proof in proofs if proof.op == one.op and one.names(proof.variant)]
        met = [proof for proof in named if one.verdict in (None, proof.verdict)]
        if not met:
            found = ", ".join(f"{proof.variant}@{proof.verdict}" for proof in proofs if proof.op == one.op)
            raise KernelError(f"{one.op}: {one} is required; compiled: {found or 'nothing'}")
        _check_shared_memory(met)


def check_here(op: Op[Any, Any], device: DeviceSpec, required: Requirement, activation: str) -> None:
    """Raises unless every matrix product of the required implementation becomes the required instructions here."""
    if device.capability is None:
        raise KernelError(f"{required} is required, but {device.name} runs no compiled kernels")
    target = find_target(device.capability)
    codes = op.make_device_code(device.capability) if op.make_device_code else ()
    named = [code for code in codes if required.names(code.variant)]
    proofs = [prove_code(op.name, code, target) for code in _for_activation(named, activation)]
    products = [proof for proof in proofs if proof.verdict != "none"]
    if not products or any(proof.verdict != required.verdict for proof in products):
        found = ", ".join(f"{proof.variant}@{proof.verdict}" for proof in proofs)
        raise KernelError(
            f"{required} is required; on {target} with {activation} activations: {found or 'nothing'}"
        )
    _check_shared_memory(products)


def find_target(capability: tuple[int, int]) -> str:
    number = 10 * capability[0] + capability[1]
    for target in SHARED_LIMIT_BYTES:
        if _architecture(target) == number:
            return target
    raise KernelError(
        f"no proofs for compute capability {capability[0]}.{capability[1]} yet; "
        f"targets: {', '.join(SHARED_LIMIT_BYTES)}"
    )


def _for_activation(codes: Sequence[DeviceCode], activation: str) -> list[DeviceCode]:
    """Those for the activation; rounded ones meet MXFP4 weights only, whose kernels name it."""
    meant = [code for code in codes if activation in code.variant.split()]
    unnamed = [code for code in codes if not set(code.variant.split()) & set(ACTIVATIONS)]
    return meant + unnamed if activation == "bf16" else meant or unnamed


def _check_shared_memory(proofs: Iterable[Proof]) -> None:
    for proof in proofs:
        if not proof.fits:
            raise KernelError(
                f"{proof.op} {proof.variant} wants {proof.shared_bytes} bytes of shared memory, "
                f"{proof.target} has {SHARED_LIMIT_BYTES[proof.target]}"
            )


def _architecture(target: str) -> int:
    if target not in SHARED_LIMIT_BYTES:
        near = difflib.get_close_matches(target, SHARED_LIMIT_BYTES, n=1, cutoff=0)[0]
        raise KernelError(
            f"there is no target {target!r}; did you mean {near}? targets: {', '.join(SHARED_LIMIT_BYTES)}"
        )
    return int(target.removeprefix("sm_").removesuffix("a"))


def _require_compiler() -> None:
    if importlib.util.find_spec("triton") is None:
        raise KernelError("proofs need Triton, which is not installed: pip install triton")
    if interpreting():
        raise KernelError("proofs need Triton's compiler: unset TRITON_INTERPRET")


def _compile(code: DeviceCode, architecture: int) -> Any:
    """A pointer counts as aligned to 16 bytes, as torch's are; an integer where its type says so ("i32:16")."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = code.kernel.arg_names
    if missing := set(names) - set(code.signature) - set(code.constants):
        raise KernelError(f"{code.variant} gives neither a type nor a value for {', '.join(sorted(missing))}")
    types = {name: "constexpr" if name in code.constants else code.signature[name] for name in names}
    aligned = [name for name in names if types[name].startswith("*") or types[name].endswith(":16")]
    source = ASTSource(
        fn=code.kernel,
        signature={name: kind.partition(":")[0] for name, kind in types.items()},
        constexprs={(names.index(name),): value for name, value in code.constants.items()},
        attrs={(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    options = {"num_warps": code.num_warps, "num_stages": code.num_stages, "enable_fp_fusion": True}
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)


def _disassemble(cubin: bytes) -> tuple[str | None, int, int]:
    """Machine code, registers and bytes of stack; Triton kernels have no arrays, so the stack holds spills."""
    from triton import knobs

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        sass = _run(knobs.nvidia.nvdisasm.path, "--print-code", path)
        usage = _run(knobs.nvidia.cuobjdump.path, "--dump-resource-usage", path)
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage.stdout)
    if found is None:
        raise KernelError(f"cuobjdump gave no resource usage: {usage.stdout}{usage.stderr}")
    is_unknown = "Cannot decode architecture" in sass.stderr
    if sass.returncode and not is_unknown:
        raise KernelError(f"nvdisasm failed: {sass.stderr}")
    return None if is_unknown else sass.stdout, int(found[1]), int(found[2])


def _run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)
