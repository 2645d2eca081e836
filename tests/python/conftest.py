"""Makes the package importable from the checkout, and gives tests a small scenario and the command line."""

import collections
import os
import pathlib
import subprocess
import sys

import pytest
from forked import PACKAGE
from validation_runs import Validation

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PACKAGE))
# For tests that start a Python of their own.
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(PACKAGE), os.environ.get("PYTHONPATH")]))

TRACE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:00:00.0000000,374,44
2023-11-16 18:00:00.5000000,396,109
2023-11-16 18:00:01.2500000,879,55
2023-11-16 18:00:01.2500000,91,1
2023-11-16 18:00:03.0000000,1500,130
"""

SCENARIO = """question: Does a small service work?
model: {config: llama-3.1-8b, weights: bf16, activations: bf16, kv_cache: bf16}
machine: hgx-h200
provider: vllm-0.24.0
placement: {replicas: 2, tp: 2}
engine: {profile: vllm, max_num_seqs: 64, max_num_batched_tokens: 2048}
router: round_robin
workload: {trace: trace.csv}
slo: {ttft: 2 s, tpot: 50 ms}
seed: 1
"""


class Workdir:
    """A directory with scenario.yaml and trace.csv, and the command line run inside it."""

    def __init__(self, directory):
        self.directory = directory
        self.scenario = directory / "scenario.yaml"
        self.trace = directory / "trace.csv"
        self.scenario.write_text(SCENARIO, encoding="utf-8")
        self.trace.write_text(TRACE, encoding="utf-8")

    def replace(self, old, new):
        """Edits the scenario; the old text must be there."""
        text = self.scenario.read_text(encoding="utf-8")
        assert old in text
        self.scenario.write_text(text.replace(old, new), encoding="utf-8")

    def orrery(self, *arguments):
        environment = os.environ | {"PYTHONPATH": str(PACKAGE), "COLUMNS": "100"}
        return subprocess.run([sys.executable, "-m", "orrery", *map(str, arguments)], cwd=self.directory, env=environment,
                              capture_output=True, text=True, timeout=120, check=False)  # fmt: skip

    def run(self, *arguments):
        return self.orrery("run", self.scenario, "-o", "out", "--no-report", *arguments)


@pytest.fixture
def workdir(tmp_path):
    return Workdir(tmp_path)


@pytest.fixture
def validation(tmp_path):
    return Validation(tmp_path)


@pytest.fixture
def executed(validation):
    """A directory that was executed."""
    validation.result()
    return validation.folder / "out"


def pytest_terminal_summary(terminalreporter):
    """What the fuzzer met, and the bad inputs of each class counted by what they were to end with."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            for name, value in report.user_properties if report.when == "call" else ():
                if name == "fuzzer":
                    terminalreporter.write_line(value)
    counts = collections.defaultdict(collections.Counter)
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, ()):
            case = dict(report.user_properties).get("bad_input") if report.when == "call" else None
            if case:
                counts[case["class"]][f"exit {case['exit']}"] += 1
                counts[case["class"]][outcome] += 1
    if not counts:
        return
    columns = ("exit 2", "exit 1", "exit 0", "passed", "failed")
    counts["all"] = sum(counts.values(), collections.Counter())
    terminalreporter.write_sep("=", "bad inputs by class")
    for name, count in (("", {column: column for column in columns}), *counts.items()):
        terminalreporter.write_line(f"{name:24}" + "".join(f"{count[column]:>8}" for column in columns))
