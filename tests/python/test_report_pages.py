"""What every report page keeps to: its size, its units of memory, the names of ops over all layers, what it says of the load."""

import html
import json
import pathlib
import re

import pytest

from orrery import cli, project_root, report
from orrery.report import content, run_directory, step_figures

SCENARIOS = sorted((project_root() / "scenarios").glob("*.yaml"))
PACKAGE = pathlib.Path(report.__file__).parents[1]
MOST_BYTES = 1_500_000
# Bytes in powers of ten are said of rates alone, of a product's name, and of what a data sheet gives.
GIGABYTES = re.compile(r"\bGB\b(?!/s|\)? ?GPU| HBM)")
OF_A_DATA_SHEET = re.compile(r"hbm_capacity: \d+ GB")


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda path: path.stem)
def run(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / request.param.stem
    assert cli.main(["run", str(request.param), "-o", str(directory), "--quiet"]) == 0
    return directory


def test_the_page_of_every_shipped_scenario_is_small_and_has_one_unit_of_memory(run):
    page = (run / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) <= MOST_BYTES
    own = page.replace(report._plotly_js(), "")
    assert not GIGABYTES.search(own.split("<summary>The scenario with every default")[0])
    assert "GiB" in own


def test_the_ops_of_a_step_are_named_over_all_layers_and_keep_its_time(run):
    read = run_directory.read(run)
    rows = step_figures.breakdown_rows(read)
    assert not [row.op for row in rows if re.match(r"layers\.\d", row.op)]
    total = sum(entry["time_s"] for entry in read.summary["step_breakdown"])
    assert sum(row.time_s for row in rows) == pytest.approx(total, rel=1e-12)


def test_no_text_of_the_package_mixes_gigabytes_with_gibibytes():
    found = []
    for path in sorted(PACKAGE.rglob("*")):
        reads_units = path.name in ("rules.py", "data_sheet.py")  # of others' files
        if path.suffix in (".py", ".j2", ".js") and path.name != "plotly.min.js" and not reads_units:
            text = OF_A_DATA_SHEET.sub("", path.read_text(encoding="utf-8"))
            found += [f"{path.relative_to(PACKAGE)}: {line.strip()}" for line in text.splitlines() if GIGABYTES.search(line)]
    assert found == []


@pytest.mark.parametrize("command", ["machines", "devices"])
def test_lists_in_the_terminal_say_memory_in_gibibytes(command, capsys):
    assert cli.main([command]) == 0
    text = capsys.readouterr().out
    assert re.search(r"\d GiB", text) and re.search(r"\d GB/s", text)
    assert not GIGABYTES.search(text)


def test_an_overloaded_service_says_which_limit_binds(tmp_path):
    file = tmp_path / "q.yaml"
    file.write_text("model: {config: llama-3.1-8b}\nmachine: {name: hgx-h200, num_gpus: 1}\nprovider: vllm-0.24.0\n"
                    "engine: {max_num_seqs: 4}\n"
                    "workload: {poisson: {requests_per_s: 40, num_requests: 400, prompt_tokens: 500, output_tokens: 100}}\n")  # fmt: skip
    assert cli.main(["run", str(file), "-o", str(tmp_path / "run"), "--quiet"]) == 0
    load = json.loads((tmp_path / "run" / "summary.json").read_text())["load"]
    assert load["is_overloaded"] and load["limit"] == "seats"
    page = html.unescape((tmp_path / "run" / "report.html").read_text())
    assert content.load_words(load) in page and "held up by seats (max_num_seqs)" in page


def test_what_keeps_up_says_so_and_which_limit_held_requests_up_longest():
    load = {"offered_requests_per_s": 2.0, "served_requests_per_s": 2.0, "waiting_at_last_arrival": 0, "is_overloaded": False,
            "is_settled": True, "limit": None, "held_up": {"seats": 0.01, "token_budget": 0.25, "kv_blocks": 0, "front_end": 0}}  # fmt: skip
    words = content.load_words(load)
    assert words.startswith("The service keeps up with the load.")
    assert words.index("token budget") < words.index("seats")
    assert "KV cache" not in words
