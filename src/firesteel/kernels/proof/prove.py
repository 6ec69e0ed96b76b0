"""Compiles device code for a GPU that need not be present, and reports its matrix instructions."""
# mypy: disable-error-code="import-untyped,import-not-found"

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from firesteel.device import DeviceSpec
from firesteel.errors import KernelError
from firesteel.kernels.cuda.compile import nvrtc_version
from firesteel.kernels.op.device_code import CudaCode, DeviceCode
from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.op.op import Op
from firesteel.kernels.op.requirement import Requirement
from firesteel.kernels.op.verdict import judge, name_arguments, read_code
from firesteel.kernels.operands.activation import ACTIVATIONS
from firesteel.kernels.target import SHARED_LIMIT_BYTES, architecture, find_target

RESERVED_SHARED_BYTES = 1024  # the system's part, counted with a CTA's usage but not against its limit
FIRST_TO_RESERVE = 90  # architecture
SM_REGISTERS = 65_536
ROUNDED = frozenset(ACTIVATIONS) - {"bf16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    op: str
    variant: str
    target: str
    verdict: str
    ptx: dict[str, int]  # matrix instruction -> how often it stands in the code
    sass: dict[str, int] | None  # None: Triton's disassembler does not know the target
    registers: int  # per thread
    spills: int  # registers per thread that are spilled to memory
    shared_bytes: int  # per CTA
    compiler: str

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "shared_limit_bytes": self.shared_limit_bytes}

    @property
    def shared_limit_bytes(self) -> int:
        return SHARED_LIMIT_BYTES[self.target]

    @property
    def fits(self) -> bool:
        """Returns whether the shared memory of a CTA is within the target's limit."""
        return self.shared_bytes <= self.shared_limit_bytes

    @property
    def excess(self) -> str:
        """The message for a CTA that needs more shared memory than the target has."""
        return (
            f"{self.op} {self.variant} wants {self.shared_bytes} bytes of shared memory, "
            f"{self.target} has {self.shared_limit_bytes}"
        )


def prove(ops: Iterable[Op[Any, Any]], target: str) -> list[Proof]:
    """Proves everything that the ops declare to launch on the target."""
    return [prove_code(op.name, code, target) for op in ops for code in list_code(op, target)]


def list_code(op: Op[Any, Any], target: str) -> list[DeviceCode | CudaCode]:
    """Lists what the op declares to launch on the target."""
    capability = divmod(architecture(target), 10)
    _require_compiler()
    return list(op.make_device_code(capability)) if op.make_device_code else []


def prove_code(op: str, code: DeviceCode | CudaCode, target: str) -> Proof:
    _require_compiler()
    number = architecture(target)
    compiler = _name_compiler(code)
    try:
        compiled, dynamic = _build(code, target)
    except Exception as error:
        error.add_note(f"compiling {op} {code.variant} for {target} with {compiler}")
        raise
    machine_code = read_code(compiled)
    if isinstance(code, CudaCode):
        _check_registers(code, machine_code.registers)
    static = max(0, machine_code.shared_bytes - (RESERVED_SHARED_BYTES if number >= FIRST_TO_RESERVE else 0))
    return Proof(
        op=op,
        variant=code.variant,
        target=target,
        verdict=judge(machine_code.ptx, machine_code.sass, name_arguments(compiled)),
        ptx=machine_code.ptx,
        sass=machine_code.sass,
        registers=machine_code.registers,
        spills=machine_code.spills,
        shared_bytes=static + dynamic,
        compiler=compiler,
    )


def _build(code: DeviceCode | CudaCode, target: str) -> tuple[Any, int]:
    """Returns the compiled kernel and its bytes of dynamic shared memory."""
    if isinstance(code, CudaCode):
        return code.kernel.build(target), code.kernel.shared_bytes
    compiled = compile_code(code, architecture(target))
    return compiled, compiled.metadata.shared


def _check_registers(code: CudaCode, registers: int) -> None:
    """Raises if a CTA needs more registers than an SM has; Triton checks its own kernels.

    The hardware allocates registers to a thread in multiples of 8.
    """
    threads = code.kernel.threads
    if threads * -(-registers // 8) * 8 > SM_REGISTERS:
        raise KernelError(
            f"{code.variant}: {threads} threads of {registers} registers want more than an SM has; "
            f"__launch_bounds__({threads}) in {code.kernel.source.name} holds the compiler to fewer"
        )


def _name_compiler(code: DeviceCode | CudaCode) -> str:
    import triton

    return f"NVRTC {nvrtc_version()}" if isinstance(code, CudaCode) else f"triton {triton.__version__}"


def check(proofs: Sequence[Proof], required: Iterable[Requirement]) -> None:
    """Raises unless all kernels that a requirement covers meet it and fit their target's shared memory."""
    for requirement in required:
        of_op = [proof for proof in proofs if proof.op == requirement.op]
        named = [proof for proof in of_op if requirement.names(proof.variant)]
        meant = named if requirement.verdict is None else _meant(named, requirement.verdict)
        if not meant or any(requirement.verdict not in (None, proof.verdict) for proof in meant):
            compiled = ", ".join(f"{proof.variant}@{proof.verdict}" for proof in of_op)
            raise KernelError(f"{requirement.op}: {requirement} is required; compiled: {compiled or 'nothing'}")
        _check_shared_memory(meant)


def _meant(proofs: Sequence[Proof], verdict: str) -> list[Proof]:
    """Returns the proofs that a requirement of `verdict` covers.

    These are the matrix products of every kind (activations and weights) of which at least one has the verdict; a
    verdict on narrow numbers covers all products with rounded activations too.
    """
    if verdict == "none":
        return list(proofs)
    products = [proof for proof in proofs if proof.verdict != "none"]
    kinds = {_kind(proof) for proof in products if proof.verdict == verdict}
    is_narrow = verdict in ("native-fp4", "fp8")
    return [proof for proof in products if _kind(proof) in kinds or (is_narrow and _kind(proof) & ROUNDED)]


def _kind(proof: Proof) -> frozenset[str]:
    """Returns the activations and weights that it is for, read from the words of its variant."""
    return frozenset(word for word in proof.variant.split() if word in ACTIVATIONS or word.endswith("-weight"))


def check_here(
    op: Op[Any, Any], device: DeviceSpec, required: Requirement, activation: str, weight: str | None = None
) -> None:
    """Raises unless every matrix product of the required implementation becomes the required instructions here.

    If `none` is required, no kernel of it may hold a matrix instruction. `weight` ("mxfp4-weight") leaves out
    kernels for weights of another format.
    """
    if device.capability is None:
        raise KernelError(f"{required} is required, but {device.name} runs no compiled kernels")
    target = find_target(device.capability)
    codes = op.make_device_code(device.capability) if op.make_device_code else ()
    named = [code for code in codes if required.names(code.variant) and _is_for(code, weight)]
    proofs = [prove_code(op.name, code, target) for code in _for_activation(named, activation)]
    judged = [proof for proof in proofs if required.verdict == "none" or proof.verdict != "none"]
    if not judged or any(proof.verdict != required.verdict for proof in judged):
        compiled = ", ".join(f"{proof.variant}@{proof.verdict}" for proof in proofs)
        raise KernelError(
            f"{required} is required; on {target} with {activation} activations: {compiled or 'nothing'}"
        )
    _check_shared_memory(judged)


def _is_for(code: DeviceCode | CudaCode, weight: str | None) -> bool:
    held = [word for word in code.variant.split() if word.endswith("-weight")]
    return weight is None or not held or weight in held


def _for_activation(codes: Sequence[DeviceCode | CudaCode], activation: str) -> list[DeviceCode | CudaCode]:
    """Returns the code for the activation.

    Only kernels for MXFP4 weights round activations, and these name the activation.
    """
    meant = [code for code in codes if activation in code.variant.split()]
    unnamed = [code for code in codes if not set(code.variant.split()) & set(ACTIVATIONS)]
    return meant + unnamed if activation == "bf16" else meant or unnamed


def _check_shared_memory(proofs: Iterable[Proof]) -> None:
    for proof in proofs:
        if not proof.fits:
            raise KernelError(proof.excess)


def _require_compiler() -> None:
    if importlib.util.find_spec("triton") is None:
        raise KernelError("proofs need Triton, which is not installed: pip install triton")
    if interpreting():
        raise KernelError("proofs need Triton's compiler: unset TRITON_INTERPRET")


def compile_code(code: DeviceCode, architecture: int) -> Any:
    """Compiles the kernel; pointers count as aligned to 16 bytes, integers if their type says so ("i32:16")."""
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
    options = {
        "num_warps": code.num_warps,
        "num_stages": code.num_stages,
        "enable_fp_fusion": code.enable_fp_fusion,
    }
    return triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
