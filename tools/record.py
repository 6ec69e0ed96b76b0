"""Renews the records of a GPU and the README's tables: `make records` on a machine with an H200.

python tools/record.py [--into RECORDS] [FOLDER ...]          # all folders below, or the named ones

A folder's records are replaced when all of its commands are done; if one fails or is interrupted, they stay as they
are, and those of the folders before it are new. Each folder takes minutes at most. Tables are renewed if RECORDS is
the checkout's own folder; on a machine without the packages for charts, run tools/pages.py elsewhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from firesteel.device import find_device
from tables.records import RECORDS, ROOT

GPU = "NVIDIA H200"
OUT = Path("firesteel-bench")  # relative, because records contain their command
COLD = OUT / "compiled"  # kernel cache of the commands that name it; empty when the first of them starts
STEP = "bench decode --synthetic gpt-oss-120b --no-plot"
OPS = "attention linear moe_matmul quantize_mxfp8 rms_norm rms_norm_fed rope_kv_write route draw"
COMMANDS = {
    "h200-decode": (
        f"{STEP} --batch 1 --context 2048,8192,32768 --check 40",
        f"{STEP} --mxfp4-layers qkv,o,lm_head --batch 1 --context 2048,8192,32768 --check 40",
        f"{STEP} --kv-dtype fp8 --batch 1 --context 8192,32768 --check 10",
        f"{STEP} --mxfp4-layers qkv,o,lm_head --kv-dtype fp8 --batch 1 --context 8192,32768 --check 10",
        "bench decode --synthetic gpt-oss-20b --no-plot --batch 1 --context 2048 --check 40",
        f"{STEP} --batch 2,4,8 --context 2048 --check 10",
    ),
    "h200-loop": (
        f"{STEP} --engine --batch 1 --context 512 --steps 2000 --kernel-cache-dir {COLD}/cuda",
        f"{STEP} --engine --batch 1,8,16,32,64 --context 512 --steps 400 --temperature 1"
        f" --kernel-cache-dir {COLD}/cuda",
    ),
    "h200-loop-many": (f"{STEP} --engine --batch 128,256 --context 512 --steps 200 --temperature 1",),
    "h200-prefill": ("bench prefill --synthetic gpt-oss-120b --tokens 20,100,500,2048,8192,20000",),
    "h200-workload": ("bench workload --synthetic gpt-oss-120b --max-model-len 16384",),
    "h200-ops": (
        "bench ops --no-plot --m 1,8,32,64,512,2048,8192 " + " ".join(f"--op {name}" for name in OPS.split()),
    ),
    "h200-attention": (
        "bench ops --no-plot --op attention --m 512,1024,2048 --implementation triton:decode"
        " --implementation triton:prefill --implementation triton:mixed",
    ),
    "h200-agreement": (
        "bench agreement --device cuda",
        "bench agreement --synthetic gpt-oss-120b --max-model-len 4096 --requests 8 --prompt-tokens 256"
        " --max-tokens 32",
    ),
    "h200-invariance": (
        "bench agreement --batch-invariant --requests 8 --prompt-tokens 200 --max-tokens 24 --schedules 6"
        " --page-size 16",
    ),
    "h200-invariance-cost": tuple(
        f"{command}{flag}"
        for flag in ("", " --batch-invariant")
        for command in (
            f"{STEP} --engine --batch 1,8,32 --context 512 --steps 400 --temperature 1",
            "bench prefill --synthetic gpt-oss-120b --tokens 100,2048",
        )
    ),
    "h200-speculate": (
        "bench speculate --synthetic gpt-oss-120b --requests 1,2 --rows 8 --context 2048 --steps 50",
    ),
}
# Folders that have no records yet; their cells of the tables are blank.
UNMEASURED = ("h200-loop-many", "h200-attention", "h200-invariance-cost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--into", type=Path, metavar="RECORDS", default=RECORDS, help="default: those of the checkout"
    )
    parser.add_argument("folders", nargs="*", metavar="FOLDER")
    given = parser.parse_args()
    names = given.folders or list(COMMANDS)
    if unknown := set(names) - set(COMMANDS):
        sys.exit(f"{', '.join(sorted(unknown))}: records are of {', '.join(COMMANDS)}")
    check_gpu(find_device().name)
    for name in names:
        measure(name, COMMANDS[name], given.into)
        print(f"{name}: replaced in {given.into}", flush=True)
    if given.into == RECORDS:
        renew_pages()


def renew_pages() -> None:
    """Renews tables and charts; says where else to do it if a package that draws is missing."""
    try:
        from pages import write_all
    except ModuleNotFoundError as error:
        sys.exit(f"the records are complete, the tables are not: {error}; run tools/pages.py where it is installed")
    write_all()


def check_gpu(name: str) -> None:
    if name != GPU:
        sys.exit(f"these records are of an {GPU}, this is {name}: run firesteel bench, which says where it ran")


def measure(name: str, commands: Sequence[str], records: Path) -> None:
    out = OUT / name
    for folder in (out, COLD):
        shutil.rmtree(ROOT / folder, ignore_errors=True)
    for command in commands:
        own = {"TRITON_CACHE_DIR": str(COLD / "triton")} if str(COLD) in command else {}
        words = [sys.executable, "-m", "firesteel", *command.split(), "--out", str(out)]
        print(f"firesteel {command}", flush=True)
        subprocess.run(words, cwd=ROOT, env={**os.environ, **own}, check=True)
    replace_records(ROOT / out, records / name)


def replace_records(made: Path, kept: Path) -> None:
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    for path in made.glob("*.json"):
        shutil.copy(path, kept)


if __name__ == "__main__":
    main()
