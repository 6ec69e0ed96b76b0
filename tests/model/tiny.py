"""A network small enough for tests that write and read whole checkpoints."""

from firesteel.model.spec import ModelSpec, RopeSpec

SPEC = ModelSpec(
    num_layers=2,
    hidden_size=64,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=99,
    windows=(8, None),
    rope=RopeSpec(theta=10000.0),
    max_context=256,
)
