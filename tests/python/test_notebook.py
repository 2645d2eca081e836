"""The notebooks run from top to bottom, headless, and are stored with small outputs."""

import pathlib
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
MOST_BYTES = 60_000  # of a file

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

sys.path.insert(0, str(ROOT / "notebooks"))
import execute  # noqa: E402


def test_there_are_the_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "from_prediction_to_execution", "long_context", "own_model_gpu_trace", "pd_or_aggregated", "quickstart",
        "sizing_a_service"]  # fmt: skip


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_as_it_ran_with_small_outputs(path):
    stored = f"python notebooks/execute.py notebooks/{path.name} stores it so"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size <= MOST_BYTES
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), stored
    conclusion = code[-1].outputs[0]["data"]["text/markdown"]
    assert any(character.isdigit() for character in conclusion)
    for cell in code:
        assert all(output["output_type"] != "error" for output in cell.outputs), stored


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, monkeypatch, tmp_path):
    for name in ("PYTHONPATH", "PLOTLY_RENDERER"):  # which it sets
        monkeypatch.setenv(name, "")
    notebook = execute.executed(path, tmp_path)
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any(execute.PLOTLY in output.get("data", {}) for output in outputs)
