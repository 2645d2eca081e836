"""The page of a validation in headless Chromium: it draws, fits narrow and wide windows, and asks nobody for anything."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import chromium
import pytest

pytestmark = pytest.mark.skipif(
    chromium.executable() is None, reason="no Chromium here; install the Debian package chromium"
)

ROOT = pathlib.Path(__file__).resolve().parents[2]
SCENARIO = """question: Are <b>small</b> steps as predicted?
model: {config: llama-3.1-8b}
machine: {name: hgx-h200, num_gpus: 8}
provider: orrery
placement: {tp: 2}
engine: {profile: orrery, block_size: 64}
workload: {closed_loop: {concurrency: 4, num_requests: 20, prompt_tokens: 300, output_tokens: 12}}
validate: {repeats: 3, steps: [{decodes: 8, context: 512}, {prefill: [512]}]}
"""


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("validation")
    (folder / "small.yaml").write_text(SCENARIO)
    program = folder / "orrery-gpu"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{ROOT / "tests/python/fake_orrery_gpu.py"}" "$@"\n')
    program.chmod(0o755)
    change = {"kernels": {"all": 1.05}, "gap_s": 1e-6, "communication": 1.2, "tpot": 1.1, "memory": {"context": 5e8}}
    environment = os.environ | {
        "ORRERY_GPU": str(program),
        "FAKE_GPU": json.dumps(change),
        "PYTHONPATH": str(ROOT / "bindings"),
    }
    command = [sys.executable, "-m", "orrery", "validate", "small.yaml", "-o", "out"]
    subprocess.run(command, cwd=folder, env=environment, check=True, capture_output=True)
    return folder / "out" / "validation.html"


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (420, True)], ids=["wide-light", "narrow-dark"])
def test_the_page_draws_fits_and_loads_nothing(page_file, width, dark):
    with chromium.Browser() as browser:
        opened = browser.open(page_file, width=width, dark=dark)
        assert opened.errors() == []
        assert opened.requests() == [page_file.resolve().as_uri()]
        # Scatter, errors, causes, one layer, memory, TTFT, TPOT.
        assert opened.evaluate("document.documentElement.dataset.drawn") == "7"
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        assert opened.evaluate("document.querySelectorAll('#steps-table tbody tr').length") == 3
        # A point for each step in the scatter plot: two decodes (graph, eager) and a prefill.
        assert opened.evaluate("document.querySelectorAll('#scatter .scatterlayer .point').length") == 3
        text = opened.evaluate("document.body.innerText")
        assert "Are <b>small</b> steps as predicted?" in text
        assert "NVIDIA H200" in text and "0123456789ab" in text
