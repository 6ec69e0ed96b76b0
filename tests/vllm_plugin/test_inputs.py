"""Taking over vLLM's inputs: the kernel, interpreted, against plain torch."""

from pathlib import Path


def test_kernel_takes_over_what_plain_torch_does(run_interpreted):
    run_interpreted(str(Path(__file__).parent / "compare_inputs.py"))
