"""Triton kernels and the functions that launch them. Imported only if Triton is available."""
# mypy: disable-error-code="import-untyped,import-not-found"

import triton

# Set explicitly: Triton 3.9 warns if it is unset, and 3.10 changes the default.
triton.knobs.language.default_fp_fusion = True
