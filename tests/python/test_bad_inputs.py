"""Every row of tests/bad_inputs/: the exit code, the words it says, and nothing that no input may do.

A file there is a class of input; a row is

    [[case]]
    name = "mean_p50_and_cv_together"     # a sentence, unique in its file
    set = ["seed=-1"]                     # --set arguments, appended to the command; optional
    command = ["run", "q.yaml", "-o", "out", "--no-report"]    # arguments of orrery; this is the default
    files = {"trace.csv" = "arrival_s,..."}                    # written first beside q.yaml (SCENARIO below); optional
    bytes = {"x.gz" = "1f8b"}             # the same in hexadecimal
    exit = 2
    says = ["prompt_tokens"]              # each occurs in stdout or stderr
    says_not = ["nan"]                    # none occurs; optional

Every case also ends by itself, in time, without a traceback; one that fails leaves `out` as it was, and one that is refused
the whole directory.
"""

import pathlib
import tomllib

import forked
import pytest

DIRECTORY = forked.ROOT / "tests" / "bad_inputs"
SECONDS = 20
SCENARIO = """question: q
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {closed_loop: {concurrency: 4, num_requests: 8, prompt_tokens: 64, output_tokens: 16}}
"""
COMMAND = ["run", "q.yaml", "-o", "out", "--no-report"]
KEYS = {"name": str, "set": list, "command": list, "files": dict, "bytes": dict, "exit": int, "says": list, "says_not": list}


def rows():
    for file in sorted(DIRECTORY.glob("*.toml")):
        for row in tomllib.loads(file.read_text(encoding="utf-8"))["case"]:
            yield pytest.param(file.stem, row, id=f"{file.stem}:{row['name']}")


def contents(directory):
    """Every path below `directory` with what it holds: bytes of files, targets of links."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        found[name] = path.readlink() if path.is_symlink() else path.read_bytes() if path.is_file() else None
    return found


def is_output(name):
    return pathlib.Path(name).parts[0] == "out"


def write_inputs(directory, row):
    texts = {"q.yaml": SCENARIO.encode()} | {name: text.encode() for name, text in row.get("files", {}).items()}
    for name, content in (texts | {name: bytes.fromhex(text) for name, text in row.get("bytes", {}).items()}).items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


@pytest.mark.parametrize(("kind", "row"), list(rows()))
def test_a_bad_input_ends_as_the_table_says(kind, row, tmp_path, record_property):
    record_property("bad_input", {"class": kind, "exit": row["exit"]})
    directory = tmp_path / "case"
    directory.mkdir()
    write_inputs(directory, row)
    before = contents(directory)
    overrides = [word for assignment in row.get("set", []) for word in ("--set", assignment)]
    ended = forked.run([*row.get("command", COMMAND), *overrides], directory, seconds=SECONDS)
    assert not ended.complaint, ended.output[-5000:]
    assert ended.exit == row["exit"], ended.output[-5000:]
    for words in row.get("says", []):
        assert words in ended.output
    for words in row.get("says_not", []):
        assert words not in ended.output
    after = contents(directory)
    assert not [name for name in after if pathlib.Path(name).name.startswith(".out-")]
    if ended.exit != 0:
        assert {name: after[name] for name in after if is_output(name)} == {name: before[name] for name in before if is_output(name)}
    if ended.exit == 2:
        assert after == before


def test_the_rows_are_well_formed():
    names = set()
    for parameter in rows():
        _, row = parameter.values
        assert parameter.id not in names, f"{parameter.id} is there twice"
        names.add(parameter.id)
        for key, value in row.items():
            assert isinstance(value, KEYS.get(key, ())), f"{parameter.id}: {key}"
        assert row["exit"] in (0, 1, 2), parameter.id
        assert row.get("says") or row.get("says_not"), f"{parameter.id}: a row that cannot fail for its words"
    assert names
