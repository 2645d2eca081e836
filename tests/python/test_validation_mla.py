"""scenarios/validate/deepseek_*: all can be predicted; no call that their tables come from is one that judges them."""

from pathlib import Path

import pytest

import orrery
from orrery import _core
from orrery.validation.held_out import judged_calls

FOLDER = Path(__file__).resolve().parents[2] / "scenarios/validate"
SCENARIOS = sorted(FOLDER.glob("deepseek_*.yaml"))


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Directories of the scenarios, prepared."""
    folder = tmp_path_factory.mktemp("prepared")
    for path in SCENARIOS:
        (folder / path.stem).mkdir()
        _core.predict_validation(orrery.load(path)).write(str(folder / path.stem))
    return [folder / path.stem for path in SCENARIOS]


def test_every_scenario_can_be_prepared(directories: list[Path]) -> None:
    assert len(directories) == 7
    for directory in directories:
        assert list((directory / "steps").glob("*.plan")), directory


def test_calls_to_calibrate_are_of_no_judged_step(directories: list[Path]) -> None:
    lines = (FOLDER / "calibration_mla.ops").read_text(encoding="utf-8").splitlines()
    listed = {frozenset(line.split()) for line in lines if line and not line.startswith("#")}
    # Of cp 2 the LM head and sampling of 8 rows are, of placements a fifth of all calls (docs/parallel.md).
    timed = {"deepseek_v2_lite_cp2", "deepseek_v3_slice_tp2"}
    calls = judged_calls(directory for directory in directories if directory.name not in timed)
    judged = {
        frozenset([kernel, dtype, *(f"{name}={size}" for name, size in dims)]) for kernel, dtype, dims in calls
    }
    assert len(listed) > 700
    assert not listed & judged


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.ops")), ids=lambda path: path.stem)
def test_calls_to_calibrate_have_their_dims_in_the_order_of_their_tables(path: Path) -> None:
    tables = FOLDER.parents[1] / "topologies/devices/h200-sxm/orrery"
    calls = [line.split() for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    orders = {(call[0], *(dim.split("=")[0] for dim in call[2:])) for call in calls}
    for kernel, *dims in orders:
        table = tables / f"{kernel}.csv"
        if table.exists():  # a kernel that nobody has timed yet has none
            columns = table.read_text(encoding="utf-8").splitlines()[0].split(",")
            assert dims == columns[columns.index("dtype") + 1 : columns.index("time_us")], kernel
