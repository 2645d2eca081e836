"""`orrery validate` in a directory of its own, with a stand-in for orrery-gpu (fake_orrery_gpu.py)."""

import json
import os
import pathlib
import stat
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]

SCENARIO = """question: Is a small step as predicted?
model: {config: llama-3.1-8b}
machine: {name: hgx-h200, num_gpus: 8}
provider: orrery
placement: {tp: 2}
engine: {profile: orrery, block_size: 64}
workload: {closed_loop: {concurrency: 4, num_requests: 20, prompt_tokens: 300, output_tokens: 12}, warmup_requests: 4}
validate:
  repeats: 5
  serve: false
  steps:
    - {name: decode, decodes: 8, context: 512}
    - {name: prefill, prefill: [512]}
seed: 1
"""


class Validation:
    """The command in a directory of its own, and what it leaves in `out`."""

    def __init__(self, folder):
        self.folder = folder
        self.scenario = folder / "small.yaml"
        self.scenario.write_text(SCENARIO, encoding="utf-8")
        self.log = folder / "log"
        self.program = folder / "orrery-gpu"
        self.program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{HERE / "fake_orrery_gpu.py"}" "$@"\n')
        self.program.chmod(self.program.stat().st_mode | stat.S_IXUSR)
        self.environment = os.environ | {
            "ORRERY_GPU": str(self.program),
            "FAKE_GPU_LOG": str(self.log),
            "COLUMNS": "120",
        }

    def start(self, *arguments, **change):
        command = [sys.executable, "-m", "orrery", "validate", *map(str, arguments)]
        return subprocess.Popen(
            command,
            cwd=self.folder,
            env=self.environment | {"FAKE_GPU": json.dumps(change)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments, **change):
        """Exit code, stdout, stderr."""
        child = self.start(*arguments, **change)
        out, err = child.communicate(timeout=120)
        assert "Traceback" not in err, err
        return child.returncode, out, err

    def result(self, **change):
        """validation.json of the scenario, executed with that change."""
        code, _, err = self.run(self.scenario, "-o", "out", "--force", **change)
        assert code == 0, err
        return json.loads((self.folder / "out" / "validation.json").read_text())


def step(result, name):
    return next(step for step in result["steps"] if step["name"] == name)
