"""Records what the plugin computes in vLLM, row by row: run by the Python of an environment with vLLM, not by ours.

Reads from stdin {"options": of vllm.LLM, "prompts": [token ids, ...], "rounds": {name: {"batches": [[number of a
prompt, ...], ...], "keeps_cache": use what was cached before}}, "max_tokens": N, "planted": change the last bit of
logits of five or more rows, "file": where rows go}.

The file holds {name: {"logits": {(prompt, position of the token drawn): [V]}, "residual": {(prompt, position):
[H]}, "changed": keys of rows that were computed twice with other bits}}. The last line written is {"cached": {name:
cached prompt tokens}, "preemptions": {name: number}}.
"""

import itertools
import json
import sys

import torch
from vllm import LLM, SamplingParams
from vllm.forward_context import get_forward_context

from tests.vllm_plugin.generate import DEFAULTS

PLANTED_FROM = 5  # rows


def record(worker, prompts, planted):
    """Makes the model of a worker keep its rows; the request of a row is known by its prompt."""
    runner = worker.model_runner
    model, numbers = runner.model, {tuple(prompt): number for number, prompt in enumerate(prompts)}
    forward, compute_logits = model.forward, model.compute_logits
    last = []  # prompt and position of the last row of each request in this step, until its logits were asked for

    def keep(kind, key, row):
        rows = worker.kept[kind]
        if not torch.equal(rows.setdefault(key, row.clone()).view(torch.int32), row.view(torch.int32)):
            worker.kept["changed"].append((kind, *key))

    def recorded_forward(input_ids, positions, *others, **more):
        residual = forward(input_ids, positions, *others, **more)
        metadata = get_forward_context().attn_metadata
        starts = next(iter(metadata.values())).query_starts.tolist()
        last.clear()
        for request, (start, end) in zip(runner.input_batch.req_ids, itertools.pairwise(starts), strict=True):
            number = numbers[tuple(runner.requests[request].prompt_token_ids)]
            places = positions[start:end].tolist()
            for place, row in zip(places, residual[start:end].float(), strict=True):
                keep("residual", (number, place), row)
            last.append((number, places[-1]))
        return residual

    def recorded_logits(hidden_states):
        logits = compute_logits(hidden_states)
        if planted and logits.shape[0] >= PLANTED_FROM:
            logits = torch.nextafter(logits, torch.full_like(logits, torch.inf))
        if last:
            for (number, place), row in zip(last, logits, strict=True):
                keep("logits", (number, place + 1), row)
            last.clear()
        return logits

    model.forward, model.compute_logits = recorded_forward, recorded_logits
    worker.kept = None


def start_round(worker):
    worker.kept = {"logits": {}, "residual": {}, "changed": []}


def take_rows(worker, file, name):
    try:
        rows = torch.load(file)
    except FileNotFoundError:
        rows = {}
    torch.save(rows | {name: worker.kept}, file)


def count_preemptions(llm):
    return sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")


def main():
    task = json.loads(sys.stdin.read())
    prompts, cached, preemptions = task["prompts"], {}, {}
    llm = LLM(**DEFAULTS | task["options"])
    params = SamplingParams(temperature=0, max_tokens=task["max_tokens"], ignore_eos=True, detokenize=False)
    llm.collective_rpc(record, args=(prompts, task["planted"]))
    for name, plan in task["rounds"].items():
        before, cached[name] = count_preemptions(llm), 0
        llm.collective_rpc(start_round)
        for batch in plan["batches"]:
            assert plan["keeps_cache"] or llm.reset_prefix_cache()
            asked = [{"prompt_token_ids": prompts[number]} for number in batch]
            outputs = llm.generate(asked, params, use_tqdm=False)
            cached[name] += sum(output.num_cached_tokens or 0 for output in outputs)
        llm.collective_rpc(take_rows, args=(task["file"], name))
        preemptions[name] = count_preemptions(llm) - before
    print(json.dumps({"cached": cached, "preemptions": preemptions}))


if __name__ == "__main__":
    main()
