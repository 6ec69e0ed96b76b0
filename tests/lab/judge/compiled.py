"""Libraries with code of a GPU, made of cubins that NVRTC compiles and of text as PTX."""

import functools
import struct
import subprocess
import tempfile
from pathlib import Path

from firesteel.kernels.cuda.source import CudaSource

SOURCE = 'extern "C" __global__ void copy(unsigned *x, float *y) { y[threadIdx.x] = x[threadIdx.x]; }'
PTX, CUBIN = 1, 2
HEADER_BYTES = 72
SECTION = """
.section .note.GNU-stack,"",@progbits
.section .nv_fatbin,"a"
.align 8
fat: .incbin "{fatbin}"
.section .nvFatBinSegment,"aw"
.align 8
.long 0x466243b1, 1
.quad fat, 0
"""


@functools.cache
def make_cubin(target):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "copy.cu").write_text(SOURCE)
        return CudaSource("copy.cu", folder=Path(folder)).build(target).cubin


def make_library(path, *, cubins=(), ptx=()):
    """Writes a shared library with a fatbin of cubins and PTX for these targets, or without one."""
    entries = [_entry(CUBIN, target, make_cubin(target)) for target in cubins]
    entries += [
        _entry(PTX, target, f".version 8.8\n.target {target}\n.address_size 64\n".encode()) for target in ptx
    ]
    body = b"".join(entries)
    fatbin, assembly = path.with_suffix(".bin"), path.with_suffix(".s")
    fatbin.write_bytes(struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body)
    assembly.write_text(SECTION.format(fatbin=fatbin) if entries else ".text\n")
    subprocess.run(["gcc", "-shared", "-o", str(path), str(assembly)], check=True)
    fatbin.unlink()
    assembly.unlink()
    return path


def _entry(kind, target, content):
    content += b"\0" * (-len(content) % 8)
    number = int(target.removeprefix("sm_").rstrip("af"))
    fields = (kind, 0x0101, HEADER_BYTES, len(content), 0, 64, 0, 8, number, 0, 0, 0x11, 0, 0)
    return struct.pack("<HHIQIIHHIIIQQQ", *fields).ljust(HEADER_BYTES, b"\0") + content
