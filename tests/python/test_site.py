"""The documentation site: its pages are complete and strict. The whole of it is built by `./orrery site`."""

import importlib.util
import pathlib
import re

import pytest

import orrery

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture
def site(tmp_path, monkeypatch):
    spec = importlib.util.spec_from_file_location("orrery_site", ROOT / "docs" / "tools" / "site.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "PAGES", tmp_path / "pages")
    return module


@pytest.fixture
def pages(site):
    site.lay_out([])
    return site.PAGES


def test_every_link_of_every_page_leads_to_a_page_or_a_file(site, pages):
    broken = []
    for page in sorted(pages.rglob("*.md")):
        text = re.sub(r"^(```|~~~).*?^\1", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for _, _, target in site.LINK.findall(re.sub(r"`[^`\n]*`", "", text)):
            path = target.partition("#")[0]
            if path and ":" not in path and not (page.parent / path).is_file():
                broken.append(f"{page.relative_to(pages)}: {target}")
    assert broken == []


def test_a_link_that_leads_nowhere_is_found(site, pages):
    (pages / "docs" / "lost.md").write_text("[gone](no_such.md)", encoding="utf-8")
    with pytest.raises(AssertionError, match="lost.md: no_such.md"):
        test_every_link_of_every_page_leads_to_a_page_or_a_file(site, pages)


def test_the_navigation_names_pages_that_are_there(pages):
    named = re.findall(r"^ +- [^:]+: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M)
    assert len(named) > 20
    assert [name for name in named if not (pages / name).is_file()] == []


@pytest.mark.parametrize("kind", ["scenario", "machine", "engine"])
def test_every_key_of_the_schema_has_a_row(pages, kind):
    text = (pages / f"keys_{kind}.md").read_text(encoding="utf-8")
    schema = orrery.schema(kind)
    parts = [schema, *schema.get("definitions", {}).values()]
    keys = [key for part in parts for key in part.get("properties", {})]
    assert len(keys) > 20
    assert sum(len(re.findall(rf"^\| `{re.escape(key)}`", text, re.M)) for key in set(keys)) == len(keys)


def test_every_class_and_function_of_the_interface_is_on_its_page(pages):
    text = (pages / "api.md").read_text(encoding="utf-8")
    missing = [name for name in orrery.__all__ if callable(getattr(orrery, name)) and not re.search(rf"[\[ ]{name}[,\]]", text)]
    assert missing == []


def test_one_file_has_the_version():
    texts = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("pyproject.toml", "CITATION.cff", "CMakeLists.txt")}
    assert orrery.__version__ in texts["CMakeLists.txt"]
    assert not re.search(r"^version", texts["pyproject.toml"] + texts["CITATION.cff"], re.M)
