"""Training in miniature: it learns, continues where it stopped, and exports what it trained."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from firesteel.config import BatchConfig, CacheConfig
from firesteel.device import find_device
from firesteel.engine.engine import Engine
from firesteel.kernels import Kernels
from firesteel.kernels.ledger import Ledger
from firesteel.kernels.rope import RopeSpec
from firesteel.model.gpt_oss import GptOss
from firesteel.model.spec import ModelSpec, read_spec
from firesteel.model.weights import load_weights
from kindling.corpus import training_documents
from kindling.feed import ANSWER, LONG, PROMPT, SHORT, UNTRAINED, Encoder, batches, lay_out, pack
from kindling.network import Network, attend_dense, make_masks
from kindling.train import Course, Trainer

TINY = ModelSpec(
    num_layers=2,
    hidden_size=64,
    intermediate_size=32,
    num_heads=2,
    num_kv_heads=1,
    head_dim=32,
    num_experts=4,
    num_active=2,
    vocab_size=2048,
    windows=(16, None),
    max_context=8192,
    rope=RopeSpec(theta=10000.0, factor=4.0, original_context=512),
)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def trained(tokenizer_directory, tmp_path_factory):
    """A run of 12 steps, quantised from step 6 on, made in two pieces."""
    out = tmp_path_factory.mktemp("run")
    course = Course(
        steps=12,
        warmup=2,
        batch_tokens=SHORT,
        quantize_from=0.5,
        workers=0,
        check_every=6,
        check_documents=8,
        peak_lr=1e-2,
        spec=TINY,
    )
    Trainer(course, tokenizer_directory, out, CPU).run(until=6)
    second = Trainer(course, tokenizer_directory, out, CPU)
    assert second.step == 6
    second.run(until=12)
    return out, second


def engine_of(directory):
    device = find_device("cpu")
    spec = read_spec(directory)
    weights, _ = load_weights(directory, spec, device, workers=1, reserve_gib=0.0)
    model = GptOss(spec, weights, Kernels(device, {}, Ledger()), device, max_context=spec.max_context)
    return Engine(model, device, BatchConfig(max_num_seqs=1), CacheConfig(), max_context=spec.max_context)


def test_loss_falls_and_the_log_continues_over_runs(trained):
    lines = [json.loads(line) for line in (trained[0] / "log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert [line["step"] for line in lines if "loss" in line] == [6, 12]
    assert losses[1] < losses[0] < 8.5  # ln(2048) = 7.6 is knowing nothing
    formats = lines[-1]["perplexity"]
    assert 1 < formats["bf16"] < 3000 and formats["bf16"] != formats["mxfp4"]
    assert all(0 <= share <= 1 for line in lines if "check" in line for share in line["check"].values())


def test_exported_checkpoint_computes_what_was_trained(trained, tokenizer_directory, score):
    """The network is rounded to bf16 like the checkpoint; quantised experts must then be exactly equal."""
    out, trainer = trained
    network = Network(TINY)
    network.load_state_dict(
        {
            name: value if name.endswith(("gate_up", "down")) else value.bfloat16().float()
            for name, value in trainer.network.state_dict().items()
        }
    )
    network.quantize()
    ids = torch.randint(2000, (1, 90), generator=torch.Generator().manual_seed(1))
    positions = torch.arange(90)[None]
    with torch.no_grad():
        hidden, _ = network(ids, positions, make_masks(positions, 16))
        expected = hidden[0] @ network.lm_head.T
    actual = score(engine_of(out / "model"), ids[0].tolist())
    assert (actual - expected).norm() / expected.norm() < 1e-4


def test_training_can_start_from_an_exported_checkpoint(trained, tokenizer_directory, tmp_path, score):
    out, _ = trained
    course = Course(steps=2, warmup=1, batch_tokens=SHORT, workers=0, check_documents=4, spec=TINY)
    trainer = Trainer(course, tokenizer_directory, tmp_path, CPU, start=out / "model")
    trainer.network.quantize()
    ids = torch.arange(5, 45)[None]
    positions = torch.arange(40)[None]
    with torch.no_grad():
        hidden, _ = trainer.network(ids, positions, make_masks(positions, 16))
    expected = score(engine_of(out / "model"), ids[0].tolist())
    assert ((hidden[0] @ trainer.network.lm_head.T) - expected).norm() / expected.norm() < 1e-4


def test_quantising_changes_the_experts_and_gradients_pass_straight_through():
    network = Network(TINY)
    positions = torch.arange(8)[None]
    ids = torch.arange(8)[None]
    plain, _ = network(ids, positions, make_masks(positions, 16))
    network.quantize()
    quantised, _ = network(ids, positions, make_masks(positions, 16))
    assert not torch.equal(plain, quantised)
    quantised.sum().backward()
    assert network.layers[0].experts.gate_up.grad.abs().sum() > 0
    assert network.layers[0].attention.sinks.grad.abs().sum() > 0


def test_packed_documents_do_not_attend_to_each_other():
    network = Network(TINY)
    together = torch.tensor([[5, 6, 7, 8, 9, 10]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2]])
    with torch.no_grad():
        packed, _ = network(together, positions, make_masks(positions, 16))
        alone, _ = network(together[:, 3:], positions[:, 3:], make_masks(positions[:, 3:], 16))
    assert torch.allclose(packed[:, 3:], alone, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
def test_flex_attention_with_sinks_equals_the_dense_one():
    from kindling.network import attend_packed

    generator = torch.Generator("cuda").manual_seed(1)
    q = torch.randn(2, 8, 1024, 64, device="cuda", generator=generator)
    k, v = torch.randn(2, 2, 2, 1024, 64, device="cuda", generator=generator)
    sinks = torch.randn(8, device="cuda", generator=generator)
    positions = torch.arange(1024).remainder(300).expand(2, -1)
    dense, packed = make_masks(positions, 128), make_masks(positions.cuda(), 128)
    for kind in ("full", "window"):
        expected = attend_dense(q, k, v, sinks, getattr(dense, kind).cuda(), 0.125)
        actual = torch.compile(attend_packed)(q, k, v, sinks, getattr(packed, kind), 0.125)
        assert (actual - expected).norm() / expected.norm() < 3e-3  # tf32 products


def test_roles_mark_trained_tokens(tokenizer_directory):
    encoder = Encoder(tokenizer_directory)
    stream = training_documents(3)
    several = next(doc for doc in stream if doc.family == "several_turns" and doc.trained_from > 0)
    encoded = encoder.encode(several)
    text = {
        role: encoder.tokenizer.decode(encoded.token_ids[encoded.roles == role].tolist())
        for role in (UNTRAINED, PROMPT, ANSWER)
    }
    assert several.messages[-1].content in text[ANSWER] and "<|return|>" in text[ANSWER]
    assert several.messages[several.trained_from - 1].content in text[PROMPT]
    earlier = [message for message in several.messages[: several.trained_from] if message.role == "assistant"]
    assert earlier and all(message.content in text[UNTRAINED] for message in earlier)
    plain = encoder.encode(next(doc for doc in stream if doc.text is not None))
    assert (plain.roles == ANSWER).all()


def test_every_answer_of_a_conversation_is_taught_to_end_with_return(tokenizer_directory):
    """Ending earlier answers with <|end|> made the model continue with a question of its own."""
    encoder = Encoder(tokenizer_directory)
    silent = next(
        doc for doc in training_documents(3, long_share=1.0) if doc.trained_from == 0 and len(doc.messages) > 5
    )
    encoded = encoder.encode(silent)
    ends = np.flatnonzero(encoded.targets == encoder.return_)
    assert len(ends) == sum(message.channel == "final" for message in silent.messages) > 1
    assert (encoded.token_ids[ends[:-1]] == encoder.end).all() and encoded.token_ids[ends[-1]] == encoder.return_
    changed = np.flatnonzero(encoded.targets != encoded.token_ids)
    assert changed.tolist() == ends[:-1].tolist() and (encoded.roles[ends] == ANSWER).all()


def test_batches_repeat_by_seed_and_contain_whole_documents(tokenizer_directory):
    one, same, other = (
        next(batches(tokenizer_directory, seed=seed, workers=0, batch_tokens=4 * SHORT)) for seed in (1, 1, 2)
    )
    assert (one.token_ids == same.token_ids).all() and not (one.token_ids == other.token_ids).all()
    assert one.token_ids.shape == (4, SHORT) and (one.positions[:, 0] == 0).all()
    starts = one.positions == 0
    assert (one.roles[starts] == UNTRAINED).all() and starts.sum() > 8


def test_long_documents_get_long_rows(tokenizer_directory):
    encoder = Encoder(tokenizer_directory)
    long = [encoder.encode(doc) for doc in (next(training_documents(seed, long_share=1.0)) for seed in range(12))]
    assert max(len(example.token_ids) for example in long) <= LONG
    rows = next(pack(long, LONG))
    assert lay_out(rows).token_ids.shape == (1, LONG)


def test_learning_rate_rises_then_falls_to_zero():
    course = Course(steps=100, warmup=10, peak_lr=1.0)
    rates = [course.lr(step) for step in range(100)]
    assert rates.index(max(rates)) in (9, 10) and rates[0] < 0.2 and rates[-1] < 0.02
    assert replace(course, steps=200).lr(99) > 0.5
