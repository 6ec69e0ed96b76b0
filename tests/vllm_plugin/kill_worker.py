"""Kills a worker of vLLM between two requests: run by the Python of an environment with vLLM, not by ours.

Writes {"error": what the second request raised} as its last line.
"""

import json
import os
import signal

from vllm import LLM, SamplingParams

from firesteel.hub import BUILT_IN


def main():
    llm = LLM(
        model=str(BUILT_IN),
        dtype="bfloat16",
        skip_tokenizer_init=True,
        max_model_len=256,
        max_num_seqs=2,
        tensor_parallel_size=2,
    )
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, detokenize=False)
    prompts = [{"prompt_token_ids": [1, 2, 3]}]
    llm.generate(prompts, params, use_tqdm=False)
    workers = llm.collective_rpc(get_pid)
    os.kill(workers[-1], signal.SIGKILL)
    error = None
    try:
        llm.generate(prompts, params, use_tqdm=False)
    except Exception as raised:
        error = f"{type(raised).__name__}: {raised}"
    print(json.dumps({"error": error}), flush=True)


def get_pid(worker):
    return os.getpid()


if __name__ == "__main__":
    main()
