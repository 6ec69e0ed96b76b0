"""A model whose ops are measured in milliseconds, and ceilings of round numbers."""

from firesteel.device import find_device
from firesteel.kernels.rope import RopeSpec
from firesteel.measure.ops.outcome import Ceilings
from firesteel.measure.roofline.ceiling import Ceiling
from firesteel.measure.timing import Timing
from firesteel.model.spec import ModelSpec

CPU = find_device("cpu")
TINY = ModelSpec(
    num_layers=2,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=6,
    num_active=2,
    vocab_size=272,
    windows=(8, None),
    rope=RopeSpec(theta=150000.0),
    max_context=256,
)
SECOND = Timing(samples_s=(1.0, 1.0, 2.0), calls=1, warmups=1)
CEILINGS = Ceilings(
    read=Ceiling(work=100e9, scale=1e9, unit="GB/s", timing=SECOND),
    matrix=Ceiling(work=10e12, scale=1e12, unit="TFLOP/s", timing=SECOND),
    matrix_type="float32",
)
