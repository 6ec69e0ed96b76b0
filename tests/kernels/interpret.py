"""Child of the `interpret` fixtures, with Triton's interpreter on. A line on stdin asks, a line on stdout answers:

{"verb": "verify", "op": ..., "samples": PATH}                         -> {"checks": [...]}
{"verb": "call", "op": ..., "implementation": ..., "samples": PATH}    -> {"results": PATH}
{"verb": "run", "program": PATH, "arguments": [...], "samples": PATH}  -> {}, after python PROGRAM SAMPLES ARGUMENTS
{"error": TRACEBACK} if the call raised.
"""

import json
import runpy
import sys
import traceback
from contextlib import redirect_stdout
from dataclasses import asdict
from types import SimpleNamespace
from unittest import mock

import numpy as np
import torch
from triton.runtime import interpreter

from firesteel.device import find_device
from firesteel.kernels.op.needs import interpreting
from firesteel.kernels.proof.verify import check_sample
from firesteel.kernels.registry import ALL_OPS


def answer(verb, samples, **question):
    return {"verify": check, "call": call, "run": run}[verb](samples, **question)


def check(samples, op):
    op, cpu = find_op(op), find_device("cpu")
    usable = [way for way in op.implementations.values() if way.name.startswith("triton") and not way.needs(cpu)]
    loaded = torch.load(samples, weights_only=False)
    return {"checks": [asdict(check_sample(op, way, sample)) for sample in loaded for way in usable]}


def call(samples, op, implementation):
    function = find_op(op).implementations[implementation].function
    results = [function(*sample.clone()) for sample in torch.load(samples, weights_only=False)]
    torch.save(results, samples + ".results")
    return {"results": samples + ".results"}


def run(samples, program, arguments):
    with mock.patch.object(sys, "argv", [program, samples, *arguments]), redirect_stdout(sys.stderr):
        runpy.run_path(program, run_name="__main__")
    return {}


def find_op(name):
    return next(op for op in ALL_OPS if op.name == name)


def patch_once(patch):
    """Patches Triton's language once: Triton does it at every call of a device function, a third of the time."""
    patched = set()

    def patch_unless_patched(function):
        if id(function.__globals__) not in patched:
            patched.add(id(function.__globals__))
            patch(function)
        return SimpleNamespace(restore=lambda: None)

    return patch_unless_patched


def read_scalars(patch):
    """Lets a scalar bound a loop: Triton 3.6 converts an array of one value to int, which NumPy 2.4 refuses."""

    def patch_tensor(tensor, scope):
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    return patch_tensor


assert interpreting(), "TRITON_INTERPRET=1 must be set"
interpreter._patch_lang = patch_once(interpreter._patch_lang)
interpreter._patch_lang_tensor = read_scalars(interpreter._patch_lang_tensor)
torch.set_num_threads(1)
np.seterr(all="ignore")  # kernels compute with infinities and NaN on purpose
for line in sys.stdin:
    try:
        reply = answer(**json.loads(line))
    except Exception:
        reply = {"error": traceback.format_exc()}
    print(json.dumps(reply), flush=True)
