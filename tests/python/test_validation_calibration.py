"""scenarios/validate/calibration_near.ops: calls next to those of all judged steps, and none of theirs."""

from pathlib import Path

import orrery
from orrery import _core
from orrery.validation.held_out import judged_calls

FOLDER = Path(__file__).resolve().parents[2] / "scenarios/validate"
# Norms of 7 rows are among the calls of the first, GEMMs of 2,100 of the second's (docs/parallel.md).
TIMED = {"deepseek_v2_lite_cp2", "deepseek_v2_lite_dp2_ep2"}
JUDGED = sorted(path for model in ("llama", "qwen3", "deepseek") for path in FOLDER.glob(f"{model}_*.yaml") if path.stem not in TIMED)


def test_calls_next_to_those_of_judged_steps_are_none_of_theirs(tmp_path: Path) -> None:
    for path in JUDGED:
        (tmp_path / path.stem).mkdir()
        _core.predict_validation(orrery.load(path)).write(str(tmp_path / path.stem))
    judged = {
        frozenset([kernel, dtype, *(f"{name}={size}" for name, size in dims)])
        for kernel, dtype, dims in judged_calls(tmp_path / path.stem for path in JUDGED)
    }
    lines = (FOLDER / "calibration_near.ops").read_text(encoding="utf-8").splitlines()
    listed = {frozenset(line.split()) for line in lines if line and not line.startswith("#")}
    assert len(JUDGED) == 35
    assert len(listed) > 1000
    assert not listed & judged
