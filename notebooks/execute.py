"""Runs notebooks from top to bottom and stores them with small outputs: python notebooks/execute.py [FILE ...]

Tables and texts are kept; so are figures of few points, as Plotly's JSON. Larger ones appear when the cell is run.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys
import tempfile
from typing import Any

import nbclient
import nbformat

HERE = pathlib.Path(__file__).resolve().parent
PLOTLY = "application/vnd.plotly.v1+json"
MOST_BYTES = 24_000  # of one output that is kept


def executed(path: pathlib.Path, folder: pathlib.Path) -> nbformat.NotebookNode:
    """The notebook after a run in `folder`, with all outputs. Raises nbclient's CellExecutionError."""
    os.environ["PLOTLY_RENDERER"] = "plotly_mimetype"
    paths = [str(HERE.parent / "bindings"), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
    return notebook


def small(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """The notebook with its small outputs alone, and nothing that differs from run to run."""
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), start=1):
        cell.execution_count = number
        cell.outputs = [output for output in cell.outputs if _keep(output, number)]
    for number, cell in enumerate(notebook.cells):
        cell.metadata = {}
        cell.id = f"cell-{number}"
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return notebook


def _keep(output: dict[str, Any], number: int) -> bool:
    if "execution_count" in output:
        output["execution_count"] = number
    if "data" in output:
        if PLOTLY in output["data"]:
            output["data"][PLOTLY].get("layout", {}).pop("template", None)
        output["data"] = {kind: data for kind, data in output["data"].items() if len(json.dumps(data)) <= MOST_BYTES}
        return bool(output["data"])
    return output["output_type"] != "stream" or output["name"] == "stdout"


def main(names: list[str]) -> None:
    for path in map(pathlib.Path, names) if names else sorted(HERE.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder:
            notebook = small(executed(path, pathlib.Path(folder)))
        nbformat.write(notebook, path)
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
