"""Generates greedy tokens in vLLM: run by the Python of an environment with vLLM, not by ours.

Reads {"options": of vllm.LLM, "rounds": [[prompts of token ids, together], ...], "max_tokens": N,
"has_logprobs": of the prompts, "reloads": the weights, at the end} from stdin, and writes
{"models": [class name per rank], "rounds": [[token ids, ...], ...], "logprobs": [[of a prompt's tokens from the
second on, ...], ...], "cached": cached prompt tokens, "preemptions": number of them, "reload": its error or null}
as its last line.
"""

import json
import sys

from vllm import LLM, SamplingParams

from firesteel.hub import BUILT_IN

DEFAULTS = {
    "model": str(BUILT_IN),
    "dtype": "bfloat16",
    "skip_tokenizer_init": True,
    "disable_log_stats": False,  # they count preemptions
}


def name_model(worker):
    return type(worker.model_runner.model).__name__


def find_logprobs(output):
    """Returns the logprob of each of the prompt's tokens; vLLM has none of the first."""
    tokens = zip(output.prompt_token_ids[1:], output.prompt_logprobs[1:], strict=True)
    return [listed[token].logprob for token, listed in tokens]


def reload(llm):
    try:
        llm.collective_rpc("reload_weights")
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main():
    task = json.loads(sys.stdin.read())
    llm = LLM(**DEFAULTS | task["options"])
    params = SamplingParams(
        temperature=0,
        max_tokens=task["max_tokens"],
        ignore_eos=True,
        detokenize=False,
        prompt_logprobs=0 if task["has_logprobs"] else None,
    )
    rounds, logprobs, cached = [], [], 0
    for prompts in task["rounds"]:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        rounds.append([list(output.outputs[0].token_ids) for output in outputs])
        if task["has_logprobs"]:
            logprobs += [find_logprobs(output) for output in outputs]
        cached += sum(output.num_cached_tokens or 0 for output in outputs)
    models = llm.collective_rpc(name_model)
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    answer = {
        "models": models,
        "rounds": rounds,
        "logprobs": logprobs,
        "cached": cached,
        "preemptions": preemptions,
    }
    print(json.dumps(answer | {"reload": reload(llm) if task["reloads"] else None}))


if __name__ == "__main__":
    main()
