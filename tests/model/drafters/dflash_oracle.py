"""Random DFlash drafters in the public format, and an oracle in plain torch: whole texts, one request, no pages."""

import json
import math

import torch
from safetensors.torch import save_file
from torch.nn import functional

YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 4096,
}


def draw_config(target, **changes):
    """Returns a config.json with the fields of the published drafters for a gpt-oss of spec `target`."""
    config = {
        "architectures": ["DFlashDraftModel"],
        "attention_bias": True,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "dflash.DFlashDraftModel"},
        "block_size": 8,
        "dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2]},
        "dtype": "bfloat16",
        "head_dim": 32,
        "hidden_act": "silu",
        "hidden_size": target.hidden_size,
        "intermediate_size": 96,
        "layer_types": ["full_attention"] * 2,
        "max_position_embeddings": 131072,
        "model_type": "qwen3",
        "num_attention_heads": 4,
        "num_hidden_layers": 2,
        "num_key_value_heads": 2,
        "num_target_layers": target.num_layers,
        "rms_norm_eps": 1e-5,
        "rope_scaling": YARN,
        "rope_theta": 150000,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "vocab_size": target.vocab_size,
    }
    config |= changes
    if "num_hidden_layers" in changes and "layer_types" not in changes:
        config["layer_types"] = ["full_attention"] * changes["num_hidden_layers"]
    return config


def list_shapes(config):
    """Returns the tensors of a drafter by their public names."""
    hidden, inter, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q_size, kv_size = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    features = len(config["dflash_config"]["target_layer_ids"]) * hidden
    shapes = {"fc.weight": (hidden, features), "hidden_norm.weight": (hidden,), "norm.weight": (hidden,)}
    for number in range(config["num_hidden_layers"]):
        layer = f"layers.{number}."
        sizes = {"q": (q_size, hidden), "k": (kv_size, hidden), "v": (kv_size, hidden), "o": (hidden, q_size)}
        for name, (rows, columns) in sizes.items():
            shapes[f"{layer}self_attn.{name}_proj.weight"] = (rows, columns)
            if config["attention_bias"]:
                shapes[f"{layer}self_attn.{name}_proj.bias"] = (rows,)
        shapes[f"{layer}self_attn.q_norm.weight"] = shapes[f"{layer}self_attn.k_norm.weight"] = (dim,)
        shapes[f"{layer}mlp.gate_proj.weight"] = shapes[f"{layer}mlp.up_proj.weight"] = (inter, hidden)
        shapes[f"{layer}mlp.down_proj.weight"] = (hidden, inter)
        shapes[f"{layer}input_layernorm.weight"] = shapes[f"{layer}post_attention_layernorm.weight"] = (hidden,)
    return shapes


def draw_tensors(config, seed):
    """Draws weights of about unit gain, and biases and norms that matter."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape in list_shapes(config).items():
        values = torch.randn(shape, generator=generator)
        if len(shape) == 2:
            values *= 1.5 * shape[1] ** -0.5
        elif name.endswith("bias"):
            values *= 0.3
        else:
            values = 1 + 0.3 * values
        tensors[name] = values.bfloat16()
    return tensors


def write_drafter(directory, config, tensors):
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


class Oracle:
    """Drafts by the definition of the format."""

    def __init__(self, config, tensors, embedding, lm_head):
        self.config = config
        self.tensors = {name: tensor.float() for name, tensor in tensors.items()}
        self.embedding, self.lm_head = embedding.float(), lm_head.float()

    def draft(self, features, anchor):
        """Returns the logits [drafted tokens, V] after `anchor`, from features [n, F] of all text before it."""
        config, weights = self.config, self.tensors
        mask = config["dflash_config"]["mask_token_id"]
        context = self.norm(features @ weights["fc.weight"].T, "hidden_norm.weight")
        x = self.embedding[torch.tensor([anchor] + [mask] * (config["block_size"] - 1))]
        for number in range(config["num_hidden_layers"]):
            layer = f"layers.{number}."
            x = x + self.attend(self.norm(x, f"{layer}input_layernorm.weight"), context, f"{layer}self_attn.")
            y = self.norm(x, f"{layer}post_attention_layernorm.weight")
            gate = functional.silu(y @ weights[f"{layer}mlp.gate_proj.weight"].T)
            up = y @ weights[f"{layer}mlp.up_proj.weight"].T
            x = x + (gate * up) @ weights[f"{layer}mlp.down_proj.weight"].T
        return self.norm(x, "norm.weight")[1:] @ self.lm_head.T

    def attend(self, x, context, prefix):
        """Lets every row of the span see the context and the whole span."""
        dim = self.config["head_dim"]
        both = torch.cat((context, x))
        q = self.rotate(self.norm(self.project(x, f"{prefix}q_proj", dim), f"{prefix}q_norm.weight"), len(context))
        k = self.rotate(self.norm(self.project(both, f"{prefix}k_proj", dim), f"{prefix}k_norm.weight"), 0)
        v = self.project(both, f"{prefix}v_proj", dim)
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, 1), v.repeat_interleave(shared, 1)
        weights = torch.einsum("qhd,khd->hqk", q, k).mul(dim**-0.5).softmax(-1)
        return self.project(torch.einsum("hqk,khd->qhd", weights, v).flatten(1), f"{prefix}o_proj", None)

    def project(self, x, name, dim):
        y = functional.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))
        return y if dim is None else y.unflatten(-1, (-1, dim))

    def norm(self, x, name):
        scaled = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config["rms_norm_eps"])
        return scaled * self.tensors[name]

    def rotate(self, heads, start):
        """Rotates heads [n, heads, D] to positions from `start` on, in halves, with YaRN if the config has it."""
        dim = heads.shape[-1]
        scaling = self.config["rope_scaling"]
        theta = self.config["rope_theta"]
        frequencies, size = [], 1.0
        for number in range(dim // 2):
            frequency = theta ** (-2 * number / dim)
            if scaling:
                edges = [
                    dim
                    * math.log(scaling["original_max_position_embeddings"] / (turns * 2 * math.pi))
                    / (2 * math.log(theta))
                    for turns in (scaling["beta_fast"], scaling["beta_slow"])
                ]
                low, high = max(edges[0], 0), min(edges[1], dim - 1)
                slow = min(max((number - low) / (high - low), 0), 1)
                frequency = frequency / scaling["factor"] * slow + frequency * (1 - slow)
                size = 0.1 * math.log(scaling["factor"]) + 1
            frequencies.append(frequency)
        angles = torch.arange(start, start + len(heads))[:, None] * torch.tensor(frequencies)
        cos, sin = (angles.cos() * size)[:, None], (angles.sin() * size)[:, None]
        first, second = heads.chunk(2, -1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)
