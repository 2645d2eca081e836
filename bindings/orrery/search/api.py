"""`orrery.explore` for programs: a scenario and what to search in, the answer as an object."""

from __future__ import annotations

import collections.abc
import concurrent.futures
import dataclasses
import html
import os
import pathlib
from typing import Any

from .. import _core, files
from ..caching import cached_property
from ..frames import ResultFrame, Row, filled
from ..scenarios import Scenario
from . import answer as answers
from . import driver, store, table, text
from .question import Question, from_file


@dataclasses.dataclass(frozen=True, eq=False)
class Plans(ResultFrame):
    """A row for each plan of a search, cheapest first: its `id`, what it is, its closed form, and what its longest
    simulation gave (None where there was none). Columns are those of plans.csv."""


@dataclasses.dataclass(frozen=True, eq=False)
class Answer:
    """What a search found."""

    exploration: driver.Exploration
    content: dict[str, Any]  # as in answer.json

    @property
    def is_met(self) -> bool:
        """Whether a plan meets the SLO in a full simulation."""
        return bool(self.content["is_met"])

    @property
    def best(self) -> dict[str, Any]:
        """The best plan, or where none meets the SLO the nearest: `words`, `assignments`, `num_gpus`, `usd_per_hour`,
        `outcome`, `checks`, `chance`."""
        return self.content["best"] if self.is_met else self.content["nearest"]

    @property
    def text(self) -> str:
        """The answer in one paragraph."""
        return text.paragraph(self.content)

    @cached_property
    def plans(self) -> Plans:
        """All plans as a table with `to_pandas`, `where`, `best`, `pareto` and `plot`."""
        rows: list[Row] = table.rows(self.exploration)
        varied = tuple(a.partition("=")[0] for a in self.exploration.assignments(0))
        return Plans(filled(rows), varied)

    def scenario(self, plan: int | None = None) -> Scenario:
        """The scenario of a plan by its `id`; None: of the best."""
        resolved = self.exploration.space.scenario(self.best["id"] if plan is None else plan)
        directory = pathlib.Path(self.exploration.question.file).parent
        return Scenario.from_yaml(resolved.to_yaml(), name=self.exploration.question.name, directory=directory)

    def write(self, directory: str | os.PathLike[str], *, force: bool = False) -> pathlib.Path:
        """Writes what `orrery explore` writes, the report too, into a new directory. Raises FileExistsError."""
        from . import command, report

        target = pathlib.Path(directory)
        with files.publishing(target, command.ANSWER, force=force) as folder:
            command.write(folder, self.exploration, self.content)
            report.render(folder)
        return target

    def __repr__(self) -> str:
        return f"Answer({self.text})"

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.text)}</p>{self.plans.where(lambda row: bool(row['meets']))._repr_html_()}"


def explore(
    question: Scenario | str | os.PathLike[str],
    search: collections.abc.Mapping[str, Any] | None = None,
    *,
    threads: int | None = None,
    executor: concurrent.futures.Executor | None = None,
    resume: str | os.PathLike[str] | None = None,
    progress: driver.Watch | None = None,
) -> Answer:
    """The plan that meets the scenario's SLO at the least cost, how sure that is, and what limits it.

    `question` is a Scenario or the path of a scenario file; `search` its search section (docs/explore.md), as
    `{"gpus": "8..64", "placement": "auto"}`, in place of what it says itself. Runs on `threads` threads (None: one for each
    core) or on any executor of concurrent.futures; the answer is the same. `resume` names an SQLite file that keeps outcomes as
    they come: a search that was stopped goes on there. `progress` is called with driver.Progress.

    Raises ScenarioError for a question that is none, ValueError where no plan is legal, FileExistsError where another process
    uses `resume`.
    """
    if isinstance(question, Scenario):
        asked = _question(question, search)
    elif search is None:
        asked = from_file(pathlib.Path(question))
    else:
        asked = _question(Scenario.from_file(question), search)
    space = driver.legal_space(asked, threads or os.cpu_count() or 1)
    if resume is None:
        found = driver.explore(asked, threads=threads, executor=executor, watch=progress, space=space)
        return Answer(found, answers.answer(found))
    with store.Store(pathlib.Path(resume), asked.digest()) as outcomes:
        found = driver.explore(asked, threads=threads, executor=executor, watch=progress, space=space, store=outcomes)
        return Answer(found, answers.answer(found))


def _question(scenario: Scenario, search: collections.abc.Mapping[str, Any] | None) -> Question:
    fields = scenario.to_dict()
    if search is not None:
        fields["search"] = dict(search)
    return Question(_core.YamlNode.of(fields).to_text(), os.path.join(scenario._directory, f"{scenario.name}.yaml"))
