"""A gpt-oss with the public vocabulary that always says the same, for the chat API of vLLM.

vLLM formats chats with the public vocabulary, which the shipped model does not have. Here, attention and experts
add nothing to the residual, so the last token alone decides on the next one, and lm_head follows a chain of tokens.
"""

import json
import shutil

import torch

from firesteel.chat.tokenizer import Tokenizer
from firesteel.device import find_device
from firesteel.hub import BUILT_IN
from firesteel.kernels.rope import RopeSpec
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.model.weights import named_tensors
from tests.chat.conftest import build_o200k

REPLY = "Hello world, this is a chain."
SPEC = ModelSpec(
    num_layers=2,
    hidden_size=64,
    intermediate_size=128,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=201088,
    windows=(128, None),
    rope=RopeSpec(theta=150000.0, factor=8.0, original_context=1024),
    max_context=8192,
)


def write_chain(directory):
    """Writes a checkpoint that answers with REPLY."""
    directory.mkdir(parents=True, exist_ok=True)
    build_o200k().save(str(directory / "tokenizer.json"), pretty=False)
    tokenizer = Tokenizer.load(directory)
    special = tokenizer.special_ids
    header = [
        *tokenizer.encode("assistant"),
        special["<|channel|>"],
        *tokenizer.encode("final"),
        special["<|message|>"],
    ]
    reply = tokenizer.encode(REPLY)
    chain = [*header, *reply, special["<|return|>"]]
    assert len(set(chain)) == len(chain) < SPEC.hidden_size
    weights = synthetic_weights(SPEC, find_device("cpu"), seed=1)
    named = named_tensors(weights, SPEC)
    for name, tensor in named.items():
        if ".o_proj." in name or ".down_proj_" in name or name in ("model.embed_tokens.weight", "lm_head.weight"):
            tensor.zero_()
    axes = torch.eye(SPEC.hidden_size, dtype=named["lm_head.weight"].dtype)
    named["model.embed_tokens.weight"][:] = axes[-1]  # of all tokens outside the chain, which begin the reply
    named["lm_head.weight"][reply[0]] += axes[-1]
    for axis, (token, successor) in enumerate(zip(chain, [*chain[1:], reply[0]], strict=True)):
        named["model.embed_tokens.weight"][token] = axes[axis]
        named["lm_head.weight"][successor] += axes[axis]
    save_checkpoint(directory, SPEC, weights)
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": [special["<|return|>"], 199999]}))
    shutil.copy(BUILT_IN / "tokenizer_config.json", directory)
    return directory
