"""The capacity-planning report of an answer: one HTML file that needs no network.

Which plan, how sure, what it costs and what limits it; every plan of the search in a chart and a table; the load that the plan
holds, and what more traffic, other lengths and limits or a failure would need; what all that stands on.
"""

from __future__ import annotations

import json
import pathlib

from .. import files
from ..report import page_parts, templates
from . import report_content as content
from . import report_figures as figures
from . import text
from .saved import Saved, read

_HERE = pathlib.Path(__file__).parent


def render(directory: pathlib.Path) -> pathlib.Path:
    """Writes report.html into the directory of an answer and returns its path; the same answer gives the same bytes.

    Raises ValueError naming the file and what it lacks where the directory is not as `orrery explore` wrote it.
    """
    saved = read(pathlib.Path(directory))
    path = pathlib.Path(directory) / "report.html"
    files.write_text(path, _html(saved))
    return path


def _html(saved: Saved) -> str:
    plots = {
        figure.name: figure
        for figure in (figures.front(saved), *figures.load_curves(saved), figures.limits(saved), figures.growth(saved), figures.others(saved))
        if figure is not None
    }
    data = json.dumps(content.page_data(saved), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return templates(_HERE).get_template("report.html.j2").render(
        saved=saved,
        answer=saved.answer,
        plots=plots,
        content=content,
        figures=figures,
        text=text,
        data=data,
        own_style=(_HERE / "report.css").read_text(encoding="utf-8"),
        own_script=(_HERE / "report_page.js").read_text(encoding="utf-8"),
        **page_parts([figure.spec() for figure in plots.values()]),
    )
