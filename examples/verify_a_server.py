"""Checks a running OpenAI-compatible server with the lab and prints the verdict of each level.

Start a server first: firesteel serve. The lab writes logs, result.json and report.html into --out.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="address of the server")
    parser.add_argument("--level", default="1", help="level to run, or `all` (default: 1, the smoke test)")
    parser.add_argument("--out", type=Path, default=Path("firesteel-lab"), help="folder of the result")
    options = parser.parse_args()
    command = [sys.executable, "-m", "firesteel", "lab", "run", "--quick", "--url", options.url]
    command += ["--out", str(options.out)]
    if options.level != "all":
        command += ["--level", options.level]
    # The lab prints its own progress. Its exit code is 0 if the server passed, 3 if it could not be judged.
    exit_code = subprocess.run(command, check=False).returncode
    result = json.loads((options.out / "result.json").read_text(encoding="utf-8"))
    for level in result["levels"]:
        print(f"level {level['level']} {level['title']}: {level['verdict']}; {level['reason']}")
    print(f"verdict: {result['verdict']}; the report is {options.out / 'report.html'}")
    return exit_code


if __name__ == "__main__":
    sys.exit(main())
