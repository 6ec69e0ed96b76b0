"""Triton kernels with the grids that launch them; no op, no reference. Imported only where Triton is ready."""
# mypy: disable-error-code="import-untyped,import-not-found"

import triton

# Said aloud, because Triton 3.9 warns where nothing is said and 3.10 changes the default.
triton.knobs.language.default_fp_fusion = True
