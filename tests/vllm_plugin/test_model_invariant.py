"""With batch invariance, logits have the same bits in every schedule of vLLM, and those of our own engine."""

import json

import pytest
import torch

from firesteel import LLM
from firesteel.measure.tokens.logit_bits import compare_logits, find_logits, record_logits
from firesteel.measure.tokens.runs import run_alone
from firesteel.types import Request, SamplingParams
from tests.vllm_plugin.peers import INSTALLED, ROOT, each_version, run_python
from tests.vllm_plugin.prompts import make_rounds

pytestmark = pytest.mark.peer
NEW = 32
WHOLE, PIECES, OTHER_PIECES = 2048, 37, 64  # tokens per step; the prompts have 5 to 333
OPTIONS = {"max_model_len": 512, "max_num_seqs": 8, "enable_prefix_caching": True}
FEW_PAGES = {"num_gpu_blocks_override": 48, "block_size": 16}
TOGETHER, ALONE = [[*range(8)]], [[number] for number in range(8)]
REVERSED = [[*reversed(range(10))]]  # the last two wait until others end


def find_prompts():
    """Returns eight prompts, and two that continue the longest and the third longest of them."""
    first, behind, _, _ = make_rounds()
    return [*first, behind[7], behind[5]]


def new_round(batches, *, keeps_cache=False):
    return {"batches": batches, "keeps_cache": keeps_cache}


def record(version, tmp_path, rounds, *, planted=False, **options):
    """Returns the rows of each round, and what vLLM answered."""
    file = tmp_path / "rows.pt"
    file.unlink(missing_ok=True)
    task = {
        "options": OPTIONS | options,
        "prompts": find_prompts(),
        "rounds": rounds,
        "max_tokens": NEW,
        "planted": planted,
        "file": str(file),
    }
    program = ROOT / "tests/vllm_plugin/record_rows.py"
    code, output = run_python(version, [program], task=task, FIRESTEEL_BATCH_INVARIANT="on")
    answers = [line for line in output.splitlines() if line.startswith('{"cached"')]
    assert code == 0 and answers, output[-20_000:]
    rows, answer = torch.load(file), json.loads(answers[-1])
    for name, kept in rows.items():
        prompts = {number for batch in rounds[name]["batches"] for number in batch}
        drawn = {(number, len(find_prompts()[number]) + place) for number in prompts for place in range(NEW)}
        assert drawn <= kept["logits"].keys(), f"{name}: the logits of every token must be recorded"
    return rows, answer


def check_equal(expected, actual, name):
    """Checks the rows that both have, of logits and of all tokens' residuals, and rows that were computed twice."""
    assert actual["changed"] == [], name
    for kind in ("logits", "residual"):
        both = expected[kind].keys() & actual[kind].keys()
        bits = compare_logits({key: expected[kind][key] for key in both}, actual[kind])
        assert bits.rows >= 8 * NEW - 8 and (bits.rows_differing, bits.bits_differing) == (0, 0), (name, kind, bits)


def own_logits(prompts):
    """Returns the logits of our engine for each prompt alone."""
    llm = LLM("kindling", device="cpu", batch_invariant=True, environ={})
    record_logits(llm.engine)
    params = SamplingParams(temperature=0.0, max_tokens=NEW, ignore_eos=True, logprobs=1)
    requests = [
        Request(request_id=str(number), token_ids=prompt, params=params) for number, prompt in enumerate(prompts)
    ]
    run_alone(llm.engine, requests)
    return {(int(name.split()[-1]), position): row for (name, position), row in find_logits(llm.engine).items()}


@each_version
def test_bits_are_the_same_alone_together_in_pieces_behind_a_cached_prefix_and_preempted(version, tmp_path):
    rounds = {
        "alone": new_round([*ALONE, [8], [9]]),
        "together": new_round(TOGETHER),
        "cached": new_round([*ALONE, [8, 9]], keeps_cache=True),
    }
    rows, answer = record(version, tmp_path, rounds, max_num_batched_tokens=WHOLE)
    expected = rows["alone"]
    assert answer["cached"] == {"alone": 0, "together": 0, "cached": pytest.approx(800, abs=400)}
    assert len(rows["cached"]["residual"]) < len(expected["residual"]) - 300, "cached tokens are not computed"
    lengths = [len(prompt) + NEW - 1 for prompt in find_prompts()]
    assert len(expected["residual"]) == sum(lengths), "every token alone"
    others = {name: rows[name] for name in ("together", "cached")}
    found, _ = record(version, tmp_path, {"pieces": new_round(REVERSED)}, max_num_batched_tokens=PIECES)
    others["pieces"] = found["pieces"]
    found, answer = record(
        version, tmp_path, {"preempted": new_round(TOGETHER)}, max_num_batched_tokens=OTHER_PIECES, **FEW_PAGES
    )
    assert answer["preemptions"]["preempted"] > 0
    others["preempted"] = found["preempted"]
    for name, actual in others.items():
        check_equal(expected, actual, name)
    ours = own_logits(find_prompts())
    drawn = {key: row for key, row in expected["logits"].items() if key in ours}
    assert len(drawn) == len(ours) == 10 * NEW
    bits = compare_logits(ours, drawn)
    assert bits.bits_differing == 0, f"our own engine: {bits}"


@pytest.mark.parametrize("version", INSTALLED[-1:])
def test_one_planted_bit_that_depends_on_the_batch_is_found(version, tmp_path):
    rounds = {"alone": new_round(ALONE), "together": new_round(TOGETHER)}
    rows, _ = record(version, tmp_path, rounds, planted=True, max_num_batched_tokens=WHOLE)
    with pytest.raises(AssertionError, match=r"'together', 'logits'"):
        check_equal(rows["alone"], rows["together"], "together")
