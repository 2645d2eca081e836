"""Builds the documentation site into build/site, strictly: a link or an anchor that leads nowhere is an error.

    ./orrery site            # what ./orrery hands over to this file

The pages are the Markdown files of the tree at the places they have there, so that their links hold, and pages made here: the keys
of scenarios and machines from the schema, the Python interface from its docstrings, and a gallery of the shipped scenarios' reports.
A link to a file of the tree that is no page takes the file along; one to a directory becomes its name.
"""

from __future__ import annotations

import argparse
import html
import pathlib
import re
import shutil
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = ROOT / "build" / "site-pages"
SOURCES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/**/*.md", "scenarios/**/*.md", "models/*.md", "topologies/**/*.md", "data/**/*.md", "tests/frozen/*.md")
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
FENCE = re.compile(r"^(```|~~~)")


def linked(text: str, page: pathlib.Path) -> str:
    """`text` of the file `page`, its links to what is no page mended; files that it links to are copied."""
    lines, is_code = [], False
    for line in text.split("\n"):
        if FENCE.match(line.strip()):
            is_code = not is_code
        lines.append(line if is_code else LINK.sub(lambda found: _mended(found, page), line))
    return "\n".join(lines)


def _mended(found: re.Match[str], page: pathlib.Path) -> str:
    target, _, anchor = found[3].partition("#")
    if not target or ":" in target:
        return found[0]
    path = (page.parent / target).resolve()
    if path.is_dir():
        inside = path / "README.md"
        return f"[{found[2]}]({target.rstrip('/')}/README.md)" if (PAGES / inside.relative_to(ROOT)).is_file() else found[2]
    if path.is_file() and path.suffix != ".md":
        copied = PAGES / path.relative_to(ROOT)
        copied.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, copied)
    return found[0]


def keys_page(kind: str) -> str:
    """Every key of a file of this kind, a section for each mapping, as `orrery schema` gives them."""
    import orrery

    schema = orrery.schema(kind)
    lines = [f"# Keys of a {kind}", "", f"Made from `orrery schema {kind}`, which editors read as well: the same tables that the program checks files by.", ""]
    parts = schema.get("definitions", {})
    lines += _table("The file", schema, parts)
    for name, part in parts.items():
        lines += _table(name, part, parts)
    return "\n".join(lines) + "\n"


def _table(title: str, part: dict[str, Any], parts: dict[str, Any]) -> list[str]:
    required = set(part.get("required", []))
    rows = [f"| `{key}`{' (needed)' if key in required else ''} | {_values(value, parts)} | {_cell(value.get('description', ''))} |"
            for key, value in part.get("properties", {}).items()]  # fmt: skip
    return [f"## {title}", "", "| key | takes | |", "|---|---|---|", *rows, ""] if rows else []


def _values(value: dict[str, Any], parts: dict[str, Any]) -> str:
    """What a key takes, in words; `parts` are the mappings that have a section."""
    if "enum" in value:
        return ", ".join(f"`{one}`" for one in value["enum"])
    for key in ("oneOf", "anyOf", "allOf"):
        if key in value:
            return " or ".join(dict.fromkeys(filter(None, (_values(one, parts) for one in value[key]))))
    if "$ref" in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})" if parts[name].get("properties") else _values(parts[name], parts)
    if isinstance(value.get("type"), list):
        return " or ".join(value["type"])
    return str(value.get("type", ""))


def _cell(text: str) -> str:
    return html.escape(" ".join(text.split()), quote=False).replace("|", "\\|")


API = """# Python

`import orrery` has these names; `orrery._core` behind them is bound C++.

::: orrery
    options:
      members: {members}
"""


def api_page() -> str:
    import orrery

    names = [name for name in orrery.__all__ if getattr(getattr(orrery, name), "__module__", "").startswith("orrery.")]
    return API.format(members="[" + ", ".join(names) + "]")


def gallery(names: list[str]) -> str:
    """Runs the scenarios, and lists their reports."""
    import orrery
    from orrery import cli

    lines = ["# Gallery", "", "Reports as `orrery run` writes them, one file each that needs no network.", "", "| question | scenario | report |", "|---|---|---|"]
    for name in names:
        path = ROOT / "scenarios" / f"{name}.yaml"
        directory = ROOT / "build" / "site-runs" / name
        if cli.main(["run", str(path), "-o", str(directory), "--force", "--quiet"]) != 0:
            raise SystemExit(1)
        (PAGES / "gallery").mkdir(exist_ok=True)
        shutil.copyfile(directory / "report.html", PAGES / "gallery" / f"{name}.html")
        shutil.copyfile(path, PAGES / "gallery" / path.name)
        lines.append(f"| {_cell(orrery.load(path).question)} | [{name}](gallery/{name}.yaml) | [report](gallery/{name}.html) |")
    return "\n".join(lines) + "\n"


def lay_out(scenarios: list[str]) -> None:
    """Writes all pages into PAGES, from nothing."""
    shutil.rmtree(PAGES, ignore_errors=True)
    found = sorted({path for pattern in SOURCES for path in ROOT.glob(pattern)})
    for path in found:  # all first: a link asks whether a directory has a page
        target = PAGES / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    for path in found:
        (PAGES / path.relative_to(ROOT)).write_text(linked(path.read_text(encoding="utf-8"), path), encoding="utf-8")
    for kind in ("scenario", "machine", "engine"):
        (PAGES / f"keys_{kind}.md").write_text(keys_page(kind), encoding="utf-8")
    (PAGES / "api.md").write_text(api_page(), encoding="utf-8")
    (PAGES / "gallery.md").write_text(gallery(scenarios), encoding="utf-8")


def main(arguments: list[str]) -> int:
    every = sorted(path.stem for path in (ROOT / "scenarios").glob("*.yaml"))
    parser = argparse.ArgumentParser(prog="orrery site", description="Build the documentation site into build/site.")
    parser.add_argument("--gallery", nargs="*", choices=every, default=every, metavar="SCENARIO", help="whose reports (default: every shipped one)")
    lay_out(parser.parse_args(arguments).gallery)
    from mkdocs.__main__ import cli as mkdocs

    mkdocs(["build", "--strict", "--config-file", str(ROOT / "mkdocs.yml")], standalone_mode=False)
    print(ROOT / "build" / "site" / "index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
