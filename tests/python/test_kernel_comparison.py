"""The measured comparison of our kernels with other libraries': docs/kernels/h200.json and its page."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/kernels"
sys.path.insert(0, str(ROOT / "kernels/compare"))

import collectives  # noqa: E402
import report  # noqa: E402
from targets import Target  # noqa: E402

FIELDS = {"kernel", "dtype", "shape", "ours_us", "peer", "peer_us", "limit_us", "gpus", "revision", "date"}
ROWS = report.load(DOCS / "h200.json")


def row(**changed: object) -> report.Row:
    """A row that reads 4.8 MB in 2 us, its peer in 3."""
    return {"kernel": "k", "dtype": "bf16", "shape": {"m": 1}, "ours_us": 2.0, "peer": "other", "peer_us": 3.0, "limit_us": 1.0, "gpus": 1,
            "revision": "0123456789", "date": "2026-01-01", **changed}


def test_every_measured_row_has_its_fields_and_names_the_revision_it_was_measured_at() -> None:
    assert ROWS
    for measured in ROWS:
        assert set(measured) == FIELDS
        assert re.fullmatch(r"[0-9a-f]{10}", measured["revision"])
        assert measured["ours_us"] > 0 and measured["peer_us"] > 0


def test_no_kernel_is_faster_than_its_limit() -> None:
    assert not [measured for measured in ROWS if measured["ours_us"] < measured["limit_us"]]


def test_the_page_is_what_its_rows_give() -> None:
    again = "measure again with kernels/compare/compare.py, or render with its --render"
    assert (DOCS / "h200.md").read_text(encoding="utf-8") == report.page(ROWS, "h200"), again
    for kernel in report.by_kernel(ROWS):
        assert (DOCS / f"h200_{kernel}.svg").exists(), again


def test_a_row_measured_again_replaces_the_old_one() -> None:
    other = row(shape={"m": 2})
    merged = report.merge([row(), other], [row(ours_us=1.5)])
    assert sorted(measured["ours_us"] for measured in merged) == [1.5, 2.0]


@pytest.mark.parametrize(("ours_us", "state"), [(2.0, "reached"), (2.8, "missed at 1 of 2")])
def test_an_aim_is_judged_by_its_worst_row(ours_us: float, state: str) -> None:
    aim = Target(kernel="k", text="1.1 times", applies=lambda measured: True, bound=1.1)
    figure, found = report.verdict(aim, [row(), row(shape={"m": 2}, ours_us=ours_us)])
    assert found == state
    assert figure.startswith(f"{3.0 / ours_us:.2f} x")


def test_an_aim_without_rows_says_so() -> None:
    aim = Target(kernel="k", text="1.1 times", applies=lambda measured: False, bound=1.1)
    assert report.verdict(aim, [row()]) == ("not measured", "not measured")


def test_rows_are_kept_one_a_line(tmp_path: Path) -> None:
    report.save(tmp_path / "rows.json", [row(), row(shape={"m": 2})])
    assert len((tmp_path / "rows.json").read_text(encoding="utf-8").splitlines()) == 4
    assert json.loads((tmp_path / "rows.json").read_text(encoding="utf-8")) == [row(), row(shape={"m": 2})]


def test_an_all_reduce_stands_beside_nccls_of_the_same_size_and_gpus(tmp_path: Path) -> None:
    (tmp_path / "all_reduce.csv").write_text(
        "implementation,version,mode,dtype,num_gpus,bytes,time_us,spread,samples\n"
        "orrery,,graph,bf16,2,1024,2.4,0.01,9\nnccl,2.28.3,graph,bf16,2,1024,5.5,0.01,9\nnccl,2.28.3,eager,bf16,2,1024,9.9,0.01,9\n"
        "orrery,,graph,bf16,4,1073741824,4555,0.01,9\nnccl,2.28.3,graph,bf16,4,1073741824,4600,0.01,9\n", encoding="utf-8")  # fmt: skip
    small, large = collectives.nccl_rows(tmp_path / "all_reduce.csv", "0123456789ab", "2026-01-01")
    assert set(small) == FIELDS and small["peer"] == "NCCL 2.28.3"
    assert (small["gpus"], small["shape"], small["ours_us"], small["peer_us"]) == (2, {"bytes": 1024}, 2.4, 5.5)
    # Each of four GPUs sends 3/2 of 1 GiB over 478.116 GB/s: 3,368.665 us, as the rows measured so far have it.
    assert (large["ours_us"], large["limit_us"]) == (4555, 3368.665)
