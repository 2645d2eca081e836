"""What is committed in docs/validation: rows and pages of one another."""

import re
from pathlib import Path

from orrery.validation import pages
from orrery.validation.results import FIELDS, load

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/validation"
ROWS = load(DOCS / "results.json")


def test_committed_rows_have_their_fields() -> None:
    assert ROWS
    for row in ROWS:
        assert tuple(row) == FIELDS
        assert row["measured"] > 0 and row["predicted"] >= 0
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", row["date"])
        assert row["calibration_revision"] or row["metric"].startswith("memory/")


def test_committed_pages_are_what_their_rows_give() -> None:
    again = "render again with python3 -m orrery.validation.pages"
    decodes = load(DOCS / "transformers.json")
    assert (DOCS / "README.md").read_text(encoding="utf-8") == pages.readme(ROWS, decodes), again
    plans = {row["plan"] for row in ROWS}
    for plan in plans:
        rows = [row for row in ROWS if row["plan"] == plan]
        assert (DOCS / f"{plan}.md").read_text(encoding="utf-8") == pages.plan_page(plan, rows), again
    assert (DOCS / "errors.svg").exists()
    assert {path.stem for path in DOCS.glob("*.md")} == plans | {"README"}
