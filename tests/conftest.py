"""Shared fixtures: a tiny random checkpoint, an LLM on it, a clean environment, and the rule for GPU tests.

And Triton's interpreter in a child: interpreter and compiler cannot share a process.
"""

import gc
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, pre_tokenizers

import firesteel
from firesteel.chat.tokenizer import _BYTE_OF_CHARACTER
from firesteel.device import find_device
from firesteel.kernels.rope import RopeSpec
from firesteel.llm import LLM
from firesteel.model.checkpoint import save_checkpoint
from firesteel.model.spec import ModelSpec
from firesteel.model.synthetic import synthetic_weights
from firesteel.types import Request, SamplingParams

INTERPRETER = Path(__file__).parent / "kernels" / "interpret.py"
SPECIAL_TOKENS = [
    "<|startoftext|>",
    "<|endoftext|>",
    "<|return|>",
    "<|constrain|>",
    "<|channel|>",
    "<|start|>",
    "<|end|>",
    "<|message|>",
    "<|call|>",
]
TINY = ModelSpec(
    num_layers=3,
    hidden_size=96,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=32,
    num_experts=6,
    num_active=2,
    vocab_size=272,
    windows=(8, None, 8),
    rope=RopeSpec(theta=150000.0, factor=8.0, original_context=32),
    max_context=256,
)


def pytest_configure(config):
    """Restores signals for child processes: nohup and background shells ignore them, which is inherited."""
    if threading.current_thread() is threading.main_thread():
        for number, heard in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
            if signal.getsignal(number) is signal.SIG_IGN:
                signal.signal(number, heard)


def pytest_collection_modifyitems(items):
    on_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if on_gpu and not torch.cuda.is_available():
        skip = pytest.mark.skip(reason=f"needs an NVIDIA GPU: torch {torch.__version__} sees none")
        for item in on_gpu:
            item.add_marker(skip)


@pytest.fixture
def forbid_waiting():
    """`with forbid_waiting():` makes every wait for the GPU inside it an error."""

    @contextmanager
    def forbid():
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
            torch.cuda.set_sync_debug_mode("error")
            try:
                yield
            finally:
                torch.cuda.set_sync_debug_mode("default")

    return forbid


@pytest.fixture(scope="session", autouse=True)
def clean_environment():
    """Removes the user's settings for the whole session, so that shared models do not see them either."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("FIRESTEEL_")]:
            patch.delenv(name)
        yield


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    """Uses one thread: on a busy machine, waiting threads cost far more than the arithmetic of tiny tensors."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def frozen_imports():
    """Freezes what is imported by now: visiting it would take each garbage collection half a second."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    """Folder of a random model of 3 layers, with a tokenizer of single bytes: token 97 is the letter a."""
    directory = tmp_path_factory.mktemp("checkpoint")
    save_checkpoint(directory, TINY, synthetic_weights(TINY, find_device("cpu"), seed=3))
    tokenizer = byte_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    stops = [tokenizer.token_to_id(token) for token in ("<|endoftext|>", "<|return|>", "<|call|>")]
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": stops}))
    return directory


def byte_tokenizer():
    tokenizer = tokenizers.Tokenizer(models.BPE(dict(_BYTE_OF_CHARACTER), []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    return tokenizer


@pytest.fixture(scope="session")
def open_llm(checkpoint):
    """Opens the tiny checkpoint as an LLM on the CPU, with the given settings."""

    def open_it(directory=checkpoint, **settings):
        return LLM(directory, **{"device": "cpu", "memory_reserve_gib": 0.0, **settings})

    return open_it


@pytest.fixture(scope="session")
def score():
    """Returns logits [T, V] of an idle engine after each token."""

    def run(engine, token_ids):
        engine.submit(Request(request_id="score", token_ids=token_ids, params=SamplingParams(), score=True))
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        return torch.cat([output.logits for output in outputs])

    return run


@pytest.fixture(scope="session")
def llm(open_llm):
    """An LLM with default settings, for tests that do not change it."""
    return open_llm()


@pytest.fixture(scope="session")
def ask_interpreter(tmp_path_factory):
    """A child process per session, started at the first request: importing torch and Triton takes seconds."""
    folder, numbers = tmp_path_factory.mktemp("interpret"), itertools.count()
    log = folder / "stderr"
    source = Path(firesteel.__file__).parents[1]
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    command = [sys.executable, "-W", "error", INTERPRETER]
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True
        ) as child,
    ):

        def ask(samples=(), **question):
            path = folder / f"{next(numbers)}.pt"
            torch.save(list(samples), path)
            child.stdin.write(json.dumps({**question, "samples": str(path)}) + "\n")
            child.stdin.flush()
            line = child.stdout.readline()
            assert line, f"the interpreter died, exit {child.wait()}:\n{log.read_text()[-4000:]}"
            answer = json.loads(line)
            assert "error" not in answer, answer["error"]
            return answer

        yield ask
        child.stdin.close()


@pytest.fixture(scope="session")
def run_interpreted(ask_interpreter):
    """run_interpreted(program, "5", "96", samples=[...]) runs a file in the interpreter, samples first."""

    def run(program, *arguments, samples=()):
        ask_interpreter(samples, verb="run", program=str(program), arguments=arguments)

    return run
