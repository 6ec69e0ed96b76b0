"""Child of the `interpret` fixtures, with Triton's interpreter on. A line on stdin asks, a line on stdout answers:

{"verb": "verify", "op": ..., "samples": PATH}                         -> {"checks": [...]}
{"verb": "call", "op": ..., "implementation": ..., "samples": PATH}    -> {"results": PATH}
{"error": TRACEBACK} where the asked raised.
"""

import json
import sys
import traceback
from dataclasses import asdict

import numpy as np
import torch

from firesteel.device import find_device
from firesteel.kernels import ALL_OPS
from firesteel.kernels.triton_ready import interpreting
from firesteel.kernels.verify import verify


def answer(verb, op, samples, implementation=None):
    loaded = torch.load(samples, weights_only=False)
    op = next(one for one in ALL_OPS if one.name == op)
    if verb == "verify":
        return {"checks": [asdict(check) for check in verify(op, find_device("cpu"), loaded)]}
    results = [op.implementations[implementation].function(*sample.clone()) for sample in loaded]
    torch.save(results, samples + ".results")
    return {"results": samples + ".results"}


assert interpreting(), "TRITON_INTERPRET=1 must be set"
torch.set_num_threads(1)
np.seterr(all="ignore")  # kernels compute with infinities and NaN on purpose
for line in sys.stdin:
    try:
        reply = answer(**json.loads(line))
    except Exception:
        reply = {"error": traceback.format_exc()}
    print(json.dumps(reply), flush=True)
