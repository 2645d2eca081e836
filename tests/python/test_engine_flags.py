"""docs/tools/engine_flags.py finds what a table of options says otherwise than a program's sources."""

import pathlib
import sys
import zipfile

from orrery.emit import flags

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "docs/tools"))
import engine_flags as tool

MODULE = """
MODES = ["fast", "safe"]
parser.add_argument("--mode", choices=MODES, help="use --old no more")
group.add_argument(f"--{prefix}port", type=int)
class ServerArgs:
    page_size: int = 1
raise ValueError("--not-an-option is none")
"""


def table_of(**given):
    kinds = {name: flags.Flag(*fields) for name, fields in given.items()}
    found = {"--" + name.replace("_", "-"): flag for name, flag in kinds.items()}
    return flags.Table("program", ("1.0", "2.0"), "2.0", "a test", "", found)


def problems(tmp_path, table, version="2.0"):
    wheel = tmp_path / "program-2.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("program/args.py", MODULE)
    return list(tool.problems(table, version, tool.Read(wheel, tool.Sources("program", ("program/args.py",), ("*Args",)))))


def test_a_right_table_has_no_problems(tmp_path):
    count = ("count", "", "", {}, {})
    table = table_of(mode=("choice", "", "", {"fast": "", "safe": ""}, {}), port=count, page_size=count)
    assert problems(tmp_path, table) == []


def test_what_a_table_says_wrong_is_found(tmp_path):
    wrong = table_of(mode=("choice", "", "", {"slow": ""}, {}), old=("switch", "", "", {}, {}), not_an_option=("switch", "", "1.0", {}, {}),
                     port=("count", "", "1.0", {}, {}))  # fmt: skip
    assert problems(tmp_path, wrong) == [
        "--mode: found no 'slow'", "--old is missing", "--port is there, though the table says it is not",
    ]  # fmt: skip


def test_every_table_of_a_python_program_is_read():
    assert set(flags.names()) - set(tool.PROGRAMS) == {"llmd", "trtllm"}
