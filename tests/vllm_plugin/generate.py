"""Generates greedy tokens in vLLM: run by the Python of an environment with vLLM, not by ours.

Reads {"options": of vllm.LLM, "rounds": [[prompts of token ids, together], ...], "max_tokens": N} from stdin, and
writes {"models": [class name per rank], "rounds": [[token ids, ...], ...], "cached": cached prompt tokens,
"preemptions": number of them} as its last line.
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


def main():
    task = json.loads(sys.stdin.read())
    llm = LLM(**DEFAULTS | task["options"])
    params = SamplingParams(temperature=0, max_tokens=task["max_tokens"], ignore_eos=True, detokenize=False)
    rounds, cached = [], 0
    for prompts in task["rounds"]:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
        rounds.append([list(output.outputs[0].token_ids) for output in outputs])
        cached += sum(output.num_cached_tokens or 0 for output in outputs)
    models = llm.collective_rpc(name_model)
    preemptions = sum(metric.value for metric in llm.get_metrics() if metric.name == "vllm:num_preemptions")
    print(json.dumps({"models": models, "rounds": rounds, "cached": cached, "preemptions": preemptions}))


if __name__ == "__main__":
    main()
