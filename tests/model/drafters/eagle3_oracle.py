"""An Eagle3 head over whole sequences in plain torch, written from the description of the format.

It reads the files with safetensors alone, keeps nothing between calls and has neither pages nor ops.
"""

import json
import math

import torch
from safetensors.torch import load_file


class Oracle:
    def __init__(self, directory, target):
        content = json.loads((directory / "config.json").read_text())
        self.config = {**content, **content.get("eagle_config", {}), **content.get("transformer_layer_config", {})}
        stored = load_file(directory / "model.safetensors")
        self.w = {name.replace("midlayer.", "layers.0."): tensor for name, tensor in stored.items()}
        self.w = {name: t.float() if t.is_floating_point() else t for name, t in self.w.items()}
        self.target = target.weights
        self.embedding = self.w.get("embed_tokens.weight", self.target.embedding.float())
        self.lm_head = self.w.get("lm_head.weight", self.target.lm_head.float())
        layers = target.spec.num_layers
        self.is_final = False
        if ids := self.config.get("eagle_aux_hidden_state_layer_ids"):
            self.boundaries = tuple(ids)
        elif "fc.weight" in self.w and self.w["fc.weight"].shape[1] == 3 * target.spec.hidden_size:
            self.boundaries = (2, layers // 2, layers - 3)
        else:
            self.boundaries, self.is_final = (layers,), True

    def norm(self, x, weight, eps=None):
        eps = self.config["rms_norm_eps"] if eps is None else eps
        return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight

    def weight(self, name, parts):
        """Returns a matrix, or the parts that it is stored in, one below the other."""
        fused = f"layers.0.{name.format('_'.join(parts) if parts[0] == 'gate' else 'qkv')}"
        if fused in self.w:
            return self.w[fused]
        names = [f"layers.0.{name.format(part)}" for part in parts]
        return torch.cat([self.w[name] for name in names]) if names[0] in self.w else None

    def combine(self, features):
        if self.is_final:
            features = self.norm(features, self.target.norm.float(), 1e-5)
        if "input_norm.weight" in self.w:
            features = self.norm(features, self.w["input_norm.weight"])
        if "fc_norm.0.weight" in self.w:
            count = len(self.boundaries)
            parts = features.unflatten(-1, (count, -1)).unbind(-2)
            features = torch.cat([self.norm(x, self.w[f"fc_norm.{i}.weight"]) for i, x in enumerate(parts)], -1)
        return features @ self.w["fc.weight"].T if "fc.weight" in self.w else features

    def angles(self, positions, dim):
        theta, scaling = self.config["rope_theta"], self.config.get("rope_scaling") or {}
        concentration = 1.0
        rates = [theta ** (-2 * i / dim) for i in range(dim // 2)]
        if scaling.get("rope_type") == "llama3":
            rates = [self.llama3(rate, scaling) for rate in rates]
        if scaling.get("rope_type") == "yarn":
            concentration = 0.1 * math.log(scaling["factor"]) + 1
            edges = [
                dim
                * math.log(scaling["original_max_position_embeddings"] / (turns * 2 * math.pi))
                / 2
                / math.log(theta)
                for turns in (32, 1)
            ]
            low, high = max(math.floor(edges[0]), 0), min(math.ceil(edges[1]), dim - 1)
            slow = [min(max((i - low) / (high - low), 0), 1) for i in range(dim // 2)]
            rates = [r / scaling["factor"] * s + r * (1 - s) for r, s in zip(rates, slow, strict=True)]
        angles = positions[:, None].float() * torch.tensor(rates)
        return angles.cos() * concentration, angles.sin() * concentration

    @staticmethod
    def llama3(rate, scaling):
        length = 2 * math.pi / rate
        original = scaling["original_max_position_embeddings"]
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        if length < original / high:
            return rate
        if length > original / low:
            return rate / scaling["factor"]
        smooth = (original / length - low) / (high - low)
        return (1 - smooth) * rate / scaling["factor"] + smooth * rate

    def rotate(self, x, cos, sin):
        """Turns heads [N, heads, D] in halves."""
        a, b = x[..., : x.shape[-1] // 2], x[..., x.shape[-1] // 2 :]
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    def forward(self, embeds, hidden):
        """Returns (rows for lm_head, rows for the next draft) of a whole sequence from position 0 on."""
        c = self.config
        dim, heads, kv_heads = c["head_dim"], c["num_attention_heads"], c["num_key_value_heads"]
        normed = self.norm(hidden, self.w["layers.0.hidden_norm.weight"])
        residual = normed if c.get("norm_before_residual") else hidden
        x = torch.cat((self.norm(embeds, self.w["layers.0.input_layernorm.weight"]), normed), -1)
        qkv = x @ self.weight("self_attn.{}_proj.weight", "qkv").T
        bias = self.weight("self_attn.{}_proj.bias", "qkv")
        qkv = qkv if bias is None else qkv + bias
        q, k, v = qkv.unflatten(-1, (-1, dim)).split([heads, kv_heads, kv_heads], 1)
        cos, sin = self.angles(torch.arange(len(x)), dim)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        k, v = k.repeat_interleave(heads // kv_heads, 1), v.repeat_interleave(heads // kv_heads, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(dim)
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        residual = residual + mixed @ self.w["layers.0.self_attn.o_proj.weight"].T
        residual = residual + self.w.get("layers.0.self_attn.o_proj.bias", torch.zeros(()))
        x = self.norm(residual, self.w["layers.0.post_attention_layernorm.weight"])
        gate, up = (x @ self.weight("mlp.{}_proj.weight", ("gate", "up")).T).chunk(2, -1)
        residual = residual + (torch.sigmoid(gate) * gate * up) @ self.w["layers.0.mlp.down_proj.weight"].T
        normed = self.norm(residual, self.w["norm.weight"])
        return normed, normed if c.get("norm_output") else residual

    def draft(self, token_ids, features, count):
        """Drafts after N + 1 tokens, of which N have features [N, F]."""
        embeds = self.embedding[torch.tensor(token_ids[1:])].float()
        hidden = self.combine(features)
        drafts = []
        for _ in range(count):
            normed, own = self.forward(embeds, hidden)
            token = int((normed[-1] @ self.lm_head.T).argmax())
            drafts.append(token + int(self.w["d2t"][token]) if "d2t" in self.w else token)
            embeds = torch.cat((embeds, self.embedding[drafts[-1]].float()[None]))
            hidden = torch.cat((hidden, own[-1:]))
        return drafts
