"""The measured kernels and layers of mixtures of experts: docs/kernels/moe_h200.json and its page."""

import re
import sys
from pathlib import Path

import pytest
from orrery import _core

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs/kernels"
sys.path.insert(0, str(ROOT / "kernels/compare"))

import moe_ops  # noqa: E402
import moe_report  # noqa: E402
import report  # noqa: E402
from moe_targets import DECODE_US, TARGETS, is_prediction  # noqa: E402

FIELDS = {"kernel", "dtype", "shape", "ours_us", "peer", "peer_us", "limit_us", "gpus", "revision", "date"}
COUNTED = {"launches", "host_syncs", "buffer_bytes"}
LAYER_FIELDS = FIELDS | COUNTED | {f"predicted_{name.removeprefix('buffer_')}" for name in COUNTED}
MEMORY = {"buffer_bytes", "predicted_bytes"}
ROWS = report.load(DOCS / "moe_h200.json")
ORIGINAL = report.load(DOCS / "moe_original.json")


def row(**changed: object) -> report.Row:
    """A layer that takes 100 us where 96 are predicted."""
    return {"kernel": "moe_layer", "dtype": "bf16", "shape": {"model": "m", "tokens": 64, "load": "uniform", "experts over": "eager", "mode": "eager"},
            "ours_us": 100.0, "peer": "predicted", "peer_us": 96.0, "limit_us": 50.0, "gpus": 4, "revision": "0123456789", "date": "2026-01-01",
            "launches": 20, "host_syncs": 1, "buffer_bytes": 2**20, "predicted_launches": 20, "predicted_host_syncs": 1, "predicted_bytes": 2**21,
            **changed}  # fmt: skip


def state(text: str, rows: list[report.Row]) -> str:
    """How an aim stands with these rows."""
    (aim,) = [target for target in TARGETS if text in target.text]
    return report.verdict(aim, rows)[1]


def test_every_measured_row_has_its_fields_and_names_the_revision_it_was_measured_at() -> None:
    assert ROWS
    for measured in ROWS:
        # Layers of scenarios (moe_layers.py) say nothing of their memory.
        assert set(measured) in ((LAYER_FIELDS, LAYER_FIELDS - MEMORY) if is_prediction(measured) else (FIELDS,))
        assert re.fullmatch(r"[0-9a-f]{10}", measured["revision"])
        assert measured["ours_us"] > 0 and measured["peer_us"] > 0


def test_no_kernel_is_faster_than_its_limit() -> None:
    assert not [measured for measured in ROWS if measured["ours_us"] < measured["limit_us"]]


def test_the_page_is_what_its_rows_give() -> None:
    again = "measure again with kernels/compare/moe.py, or render with its --render"
    text = (DOCS / "moe.md").read_text(encoding="utf-8")
    assert text == moe_report.page(ROWS, ORIGINAL, "moe_h200"), again
    for picture in re.findall(r"\]\((\S+\.svg)\)", text):
        assert (DOCS / picture).exists(), again


def test_times_of_others_name_their_source() -> None:
    for other in ORIGINAL:
        assert set(other) == {"kernel", "dtype", "shape", "by", "us", "source"}
        assert other["by"] in moe_report.COLUMNS and other["us"] > 0 and "H200" in other["source"]


def test_every_shape_with_an_aim_of_its_own_was_timed_for_others_too() -> None:
    for groups, rows, (n, k) in DECODE_US:
        shape = {"groups": groups, "rows": groups * rows, "n": n, "k": k, "load": "balanced"}
        assert [other for other in ORIGINAL if other["shape"] == shape]


@pytest.mark.parametrize(("syncs", "found"), [(1, "reached"), (2, "missed at 1 of 1")])
def test_eager_expert_parallelism_may_wait_once_for_the_host(syncs: int, found: str) -> None:
    assert state("eager expert parallelism", [row(host_syncs=syncs)]) == found


def test_predictions_on_four_gpus_are_judged_by_their_median_error() -> None:
    # Errors of 4, 4 and 20 %: the mean is above 5 %, the median below.
    layers = [row(), row(dtype="fp8"), row(peer_us=80.0, dtype="fp8 rowwise")]
    assert state("over 4 GPUs", layers) == "reached"
    assert state("over 4 GPUs", layers[1:] + [row(peer_us=121.0)]) == "missed"
    assert state("over 4 GPUs", [row(gpus=2)]) == "not measured"


def test_designs_and_expert_parallelism_have_tables_of_their_own() -> None:
    design = row(gpus=1, shape={"model": "m", "tokens": 64, "load": "uniform", "design": "padding", "mode": "graph"}, host_syncs=0)
    lines = "\n".join(moe_report.layer_section([row(), design], "stem"))
    assert "| m | 64 | uniform | padding | graph |  |  | bf16 | 1 | 100.0 | 96.00 | -4.0 % | 1.0 | 2.0 | 20 | 20 | 0 | 1 |" in lines
    assert "| m | 64 | uniform | eager |  | eager | bf16 | 4 | 100.0 | 96.00 | -4.0 % | 1.0 | 2.0 | 20 | 20 | 1 | 1 |" in lines
    assert moe_report.layer_section([], "stem") == []


def test_calls_to_calibrate_name_the_dims_of_their_kernels() -> None:
    dims = {spec["name"]: spec["dims"] for spec in _core.kernel_specs()}
    for op in moe_ops.ops():
        kernel, _, *given = op.split()
        assert [dim.partition("=")[0] for dim in given] == dims[kernel], op
        assert all(int(dim.partition("=")[2]) >= 0 for dim in given), op
