"""`orrery validate --compare` of directories that were cut, mixed up or damaged on their way: refused, and the file is named."""

import csv
import io
import pathlib
import shutil
import tomllib

import pytest
from validation_runs import ROOT, SCENARIO, Validation

from orrery import cli

TABLE = ROOT / "tests" / "bad_inputs" / "directories" / "validation.toml"
MUTATIONS = tomllib.loads(TABLE.read_text(encoding="utf-8"))["mutation"]

# Columns of times and sizes, of which no run leaves these values in every row.
NEVER = {
    "executed/steps.csv": ("duration_s", "device_s"),
    "executed/memory.csv": ("bytes",),
    "executed/requests.csv": ("ttft_s", "e2e_s", "prompt_tokens", "output_tokens"),
    "executed/serve_steps.csv": ("duration_s", "num_steps"),
    "predicted/steps.csv": ("duration_s", "high_s"),
    "predicted/memory.csv": ("bytes",),
    "predicted/requests.csv": ("ttft_s", "e2e_s", "prompt_tokens", "output_tokens"),
    "predicted/serve_steps.csv": ("duration_s", "num_steps"),
}
# Columns where 0 may stand.
SEVERAL = {
    "executed/decode_graph.spans.csv": ("start_s", "end_s", "copy", "rank", "stream", "kind", "basis"),
    "executed/decode_graph.kernels.csv": ("rank", "stream", "launches", "time_s"),
    "executed/requests.csv": ("id", "replica", "cached_tokens", "num_preemptions", "arrival_s", "first_scheduled_s", "first_token_s", "finish_s", "tpot_s"),
    "executed/serve_steps.csv": ("replica", "start_s", "prefill_tokens", "num_prefills", "num_decodes", "decode_context"),
    "workload.csv": ("arrival_s", "prompt_tokens", "output_tokens"),
}  # fmt: skip
BAD = ("-1", "nan", "inf", "-inf", "1e308", "", "x", "9" * 400)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A directory that was executed and served, as programs of earlier revisions left it, and as they do now."""
    made = Validation(tmp_path_factory.mktemp("whole"))
    made.scenario.write_text(SCENARIO.replace("serve: false", "serve: true"))
    made.result()
    for name in ("validation.json", "validation.html", "timelines.trace.json"):
        (made.folder / "out" / name).unlink()
    return made.folder / "out"


@pytest.fixture
def copied(whole, tmp_path, monkeypatch):
    """A copy named out in the working directory."""
    shutil.copytree(whole, tmp_path / "out")
    (tmp_path / "out" / "executed" / "lines.txt").unlink()
    monkeypatch.chdir(tmp_path)
    return pathlib.Path("out")


def compared(capsys):
    """Exit code, and what was printed to stderr; an exception is the traceback that users would see."""
    code = cli.main(["validate", "--compare", "out"])
    return code, capsys.readouterr().err


def set_cells(path, column, value, row=None):
    """Every cell of a column, or that of one row, becomes `value`."""
    rows = list(csv.DictReader(io.StringIO(path.read_text())))
    for number, cells in enumerate(rows):
        if row in (None, number):
            assert column in cells
            cells[column] = value
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(out.getvalue())


def mutate(path, mutation):
    text = path.read_text()
    if mutation.get("remove"):
        path.unlink()
    elif "cut_lines" in mutation:
        path.write_text("".join(text.splitlines(keepends=True)[: -mutation["cut_lines"]]))
    elif "cut_bytes" in mutation:
        path.write_text(text[: -mutation["cut_bytes"]])
    elif "text" in mutation:
        path.write_text(mutation["text"])
    elif "replace" in mutation:
        old, new = mutation["replace"]
        assert old in text
        path.write_text(text.replace(old, new, 1))
    else:
        set_cells(path, mutation["column"], mutation["value"], mutation.get("row"))


def test_what_arrived_whole_is_compared_with_and_without_counts(whole, copied, capsys):
    assert compared(capsys) == (0, "")
    shutil.copy(whole / "executed" / "lines.txt", copied / "executed")
    assert compared(capsys) == (0, "")


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation["name"])
def test_a_damaged_directory_is_refused_and_the_file_named(mutation, whole, copied, capsys):
    if mutation.get("counted"):
        shutil.copy(whole / "executed" / "lines.txt", copied / "executed")
    mutate(copied / mutation["file"], mutation)
    code, err = compared(capsys)
    assert code == mutation.get("exit", 2), err
    for words in mutation["says"]:
        assert words in err


@pytest.mark.parametrize(("file", "column"), [(file, column) for file, columns in NEVER.items() for column in columns])
def test_times_and_sizes_that_no_run_leaves_are_refused_in_every_file(file, column, whole, copied, capsys):
    for value in (*BAD, "0"):
        set_cells(copied / file, column, value)
        code, err = compared(capsys)
        assert code == 2 and f"{file}:" in err and f": column {column}: found" in err, (value, err)
        shutil.copy(whole / file, copied / file)


@pytest.mark.parametrize(("file", "column"), [(file, column) for file, columns in SEVERAL.items() for column in columns])
def test_no_value_of_a_cell_is_a_traceback_or_an_error_without_its_file(file, column, whole, copied, capsys):
    for value in BAD:
        set_cells(copied / file, column, value, row=1)
        code, err = compared(capsys)
        if not (file.endswith("requests.csv") and column == "tpot_s" and value == ""):  # which one output token has
            assert f"{file}:3: column {column}: found" in err, (value, err)
        assert code == 2 and pathlib.Path(file).name in err
        shutil.copy(whole / file, copied / file)
