"""The capacity-planning report of one run: a single HTML file that needs no network.

Answers, from a run directory that `orrery run` wrote: how fast are requests served, when and why
are they slow, where do a step's time and a GPU's memory go, and how sure is all that.
"""

from __future__ import annotations

import json
import pathlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from .. import files, run_files
from . import content, disaggregation, figures, run_directory, step_figures, timeline

if TYPE_CHECKING:
    import jinja2

__all__ = ["page_parts", "render", "templates"]

_HERE = pathlib.Path(__file__).parent


def render(run_dir: pathlib.Path) -> pathlib.Path:
    """Writes report.html into `run_dir` and returns its path; an older one is replaced.

    The same run directory gives the same bytes. Throws ValueError naming the file and what it
    lacks when the directory or a file in it is missing, malformed, or not as the run wrote it.
    """
    run_dir = pathlib.Path(run_dir)
    if run_files.is_sealed(run_dir):
        run_files.check(run_dir)
    path = run_dir / "report.html"
    files.write_text(path, _html(run_directory.read(run_dir)))
    return path


def templates(folder: pathlib.Path) -> jinja2.Environment:
    """The Jinja templates of `folder`; a name that a template does not get is an error."""
    import jinja2  # here, so that importing orrery does not pay for it

    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(folder),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )


def _html(run: run_directory.Run) -> str:
    bins = timeline.bin_run(run)
    breakdown = step_figures.breakdown_rows(run)
    plots = {
        figure.name: figure
        for figure in (
            *figures.latency_cdfs(run),
            timeline.timeline(run, bins),
            figures.ttft_scatter(run),
            figures.step_histogram(run),
            disaggregation.figure(run),
            figures.memory(run),
            step_figures.step_breakdown(breakdown),
            step_figures.step_gantt(run),
        )
        if figure is not None
    }
    return templates(_HERE).get_template("template.html.j2").render(
        run=run,
        content=content,
        disaggregation=disaggregation,
        plots=plots,
        bins=bins,
        breakdown=breakdown,
        **page_parts([figure.spec() for figure in plots.values()]),
    )


def page_parts(specs: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """What makes a page self-contained: `specs` of its figures as JSON, `style`, `script` and `plotly`."""
    # "<" may not stand in a script element: it could close it.
    text = json.dumps(specs, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return {
        "specs": text,
        "style": (_HERE / "style.css").read_text(encoding="utf-8"),
        "script": (_HERE / "report.js").read_text(encoding="utf-8"),
        "plotly": _plotly_js(),
    }


def _plotly_js() -> str:
    """plotly.js with scatter and bar alone, 1.1 MB of 4.8: docs/tools/cut_plotly.mjs makes it."""
    return (_HERE / "plotly.min.js").read_text(encoding="utf-8")
