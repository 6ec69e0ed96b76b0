"""Random Eagle3 heads in every public layout, written as folders, and a tiny target for them."""

import json
from dataclasses import dataclass, field

import torch
from safetensors.torch import save_file

from firesteel.device import find_device
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights

CPU = find_device("cpu")
TARGET = ModelSpec(
    num_layers=8,
    hidden_size=32,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=16,
    num_experts=2,
    num_active=1,
    vocab_size=61,
    windows=(8, None) * 4,
    rope=RopeSpec(theta=10000.0),
    max_context=96,
)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """One way to publish a head."""

    num_states: int | None = 3  # None: no fc
    layer: str = "midlayer"
    is_fused: bool = False
    hidden_size: int = 32
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 8
    draft_vocab: int | None = None
    has_embedding: bool = True
    has_lm_head: bool = True
    has_bias: bool = False
    has_input_norm: bool = False
    has_state_norms: bool = False
    dtype: torch.dtype = torch.bfloat16
    config: dict = field(default_factory=dict)  # at top level, in addition
    nested: bool = False  # as speculators writes it


LAYOUTS = {
    "default boundaries, own embedding, draft vocabulary": Layout(draft_vocab=23),
    "fused projections, layers.0, own boundaries, norm before fc": Layout(
        layer="layers.0",
        is_fused=True,
        has_embedding=False,
        has_input_norm=True,
        config={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 3, 6], "norm_before_fc": True}},
    ),
    "final state without fc, all shared": Layout(
        num_states=None,
        has_embedding=False,
        has_lm_head=False,
        num_kv_heads=1,
        config={"eagle_config": {"use_aux_hidden_state": False}},
    ),
    "final state through fc, another width": Layout(
        num_states=1, hidden_size=48, num_heads=3, num_kv_heads=3, head_dim=16, draft_vocab=17
    ),
    "one boundary": Layout(num_states=1, config={"eagle_aux_hidden_state_layer_ids": [4]}),
    "speculators with norms of each state and of the output": Layout(
        num_states=4,
        layer="layers.0",
        nested=True,
        has_state_norms=True,
        draft_vocab=40,
        config={
            "speculators_model_type": "eagle3",
            "architectures": ["Eagle3Speculator"],
            "eagle_aux_hidden_state_layer_ids": [1, 2, 4, 6],
            "fc_norm": True,
            "norm_output": True,
            "norm_before_residual": True,
        },
    ),
    "biases, Llama 3 rope, fp32": Layout(
        has_bias=True,
        dtype=torch.float32,
        config={
            "attention_bias": True,
            "norm_before_residual": True,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 4.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "biases fused, YaRN, fp16": Layout(
        has_bias=True,
        is_fused=True,
        dtype=torch.float16,
        config={
            "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
            "norm_output": True,
        },
    ),
}


def new_target(kernels=None):
    weights = synthetic_weights(TARGET, CPU, seed=5)
    return GptOss(TARGET, weights, kernels or Kernels(CPU, {}, Ledger()), CPU, max_context=TARGET.max_context)


def config_of(layout, target=TARGET):
    llama = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": layout.hidden_size,
        "intermediate_size": 40,
        "num_attention_heads": layout.num_heads,
        "num_key_value_heads": layout.num_kv_heads,
        "head_dim": layout.head_dim,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1000.0,
        "vocab_size": target.vocab_size,
        "hidden_act": "silu",
    }
    head = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": layout.draft_vocab} | layout.config
    return {**head, "transformer_layer_config": llama} if layout.nested else {**llama, **head}


def tensors_of(layout, seed=0, target=TARGET):
    generator = torch.Generator().manual_seed(seed)
    hidden, inter, wide = layout.hidden_size, 40, target.hidden_size

    def matrix(rows, columns):
        return torch.randn(rows, columns, generator=generator).mul(columns**-0.5).bfloat16().to(layout.dtype)

    def vector(size, around=1.0):
        return (torch.randn(size, generator=generator) * 0.2 + around).bfloat16().to(layout.dtype)

    q, kv = layout.num_heads * layout.head_dim, layout.num_kv_heads * layout.head_dim
    attention = {"q_proj.weight": matrix(q, 2 * hidden), "k_proj.weight": matrix(kv, 2 * hidden)}
    attention |= {"v_proj.weight": matrix(kv, 2 * hidden), "o_proj.weight": matrix(hidden, q)}
    mlp = {"gate_proj.weight": matrix(inter, hidden), "up_proj.weight": matrix(inter, hidden)}
    mlp["down_proj.weight"] = matrix(hidden, inter)
    if layout.has_bias:
        attention |= {f"{name}_proj.bias": vector(size, 0.0) for name, size in zip("qkv", (q, kv, kv), strict=True)}
        attention["o_proj.bias"] = vector(hidden, 0.0)
    if layout.is_fused:
        for kind in ("weight", "bias") if layout.has_bias else ("weight",):
            attention[f"qkv_proj.{kind}"] = torch.cat([attention.pop(f"{name}_proj.{kind}") for name in "qkv"])
        mlp["gate_up_proj.weight"] = torch.cat([mlp.pop("gate_proj.weight"), mlp.pop("up_proj.weight")])
    layer = {f"self_attn.{name}": tensor for name, tensor in attention.items()}
    layer |= {f"mlp.{name}": tensor for name, tensor in mlp.items()}
    layer |= {
        f"{name}.weight": vector(hidden) for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    }
    tensors = {f"{layout.layer}.{name}": tensor for name, tensor in layer.items()} | {"norm.weight": vector(hidden)}
    if layout.num_states is not None:
        tensors["fc.weight"] = matrix(hidden, layout.num_states * wide)
    if layout.has_input_norm:
        tensors["input_norm.weight"] = vector((layout.num_states or 1) * wide)
    if layout.has_state_norms:
        tensors |= {f"fc_norm.{number}.weight": vector(wide) for number in range(layout.num_states)}
    if layout.has_embedding:
        tensors["embed_tokens.weight"] = torch.randn(target.vocab_size, hidden, generator=generator).to(
            layout.dtype
        )
    if layout.has_lm_head:
        tensors["lm_head.weight"] = matrix(layout.draft_vocab or target.vocab_size, hidden)
    if layout.draft_vocab is not None:
        ids = torch.randperm(target.vocab_size, generator=generator)[: layout.draft_vocab].sort().values
        tensors["d2t"] = ids - torch.arange(layout.draft_vocab)
        tensors["t2d"] = torch.zeros(target.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    return tensors


def write_head(directory, layout, *, config=None, tensors=None, target=TARGET):
    """Writes a head's folder; `config` and `tensors` replace those of the layout."""
    directory.mkdir(parents=True, exist_ok=True)
    content = config_of(layout, target) if config is None else config
    (directory / "config.json").write_text(json.dumps(content))
    save_file(tensors_of(layout, target=target) if tensors is None else tensors, directory / "model.safetensors")
    return directory
