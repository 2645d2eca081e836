"""Calls next to those of judged steps (calibration_near.ops) and of models that nobody placed points for (calibration_odd.ops): none of judged steps."""

from pathlib import Path

import orrery
from orrery import _core
from orrery.validation.held_out import judged_calls

FOLDER = Path(__file__).resolve().parents[2] / "scenarios/validate"
# Norms of 7 rows are among the calls of the first, GEMMs of 2,100 of the second's (docs/parallel.md).
TIMED = {"deepseek_v2_lite_cp2", "deepseek_v2_lite_dp2_ep2"}
# Of unseen_qwen3_32b_tp4, unseen_scout_dp4, unseen_llama32_3b and unseen_yi_34b, which came later: three of a decode of 1, one of 12.
TIMED_BEFORE = [
    "gemm bf16 m=1 n=2560 k=5120", "index_shuffling fp32 tokens=3 experts_total=16 topk=1 groups=1 experts=16",
    "gemm bf16 m=1 n=5120 k=3072", "gemm bf16 m=1 n=9216 k=7168",
]  # fmt: skip
UNSEEN = sorted(path for path in (FOLDER / "unseen").glob("unseen_*.yaml") if "serve" not in path.stem)
JUDGED = sorted(path for model in ("llama", "qwen3", "deepseek") for path in FOLDER.glob(f"{model}_*.yaml") if path.stem not in TIMED)


def called(plans: list[Path], into: Path) -> set[frozenset[str]]:
    for path in plans:
        (into / path.stem).mkdir()
        _core.predict_validation(orrery.load(path)).write(str(into / path.stem))
    return {
        frozenset([kernel, dtype, *(f"{name}={size}" for name, size in dims)])
        for kernel, dtype, dims in judged_calls(into / path.stem for path in plans)
    }


def listed(name: str) -> set[frozenset[str]]:
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    return {frozenset(line.split()) for line in lines if line and not line.startswith("#")}


def test_calls_next_to_those_of_judged_steps_are_none_of_theirs(tmp_path: Path) -> None:
    judged = called(JUDGED, tmp_path)
    assert len(JUDGED) == 35
    assert min(len(listed("calibration_near.ops")), len(listed("calibration_odd.ops"))) > 1000
    assert not listed("calibration_near.ops") & judged
    assert not listed("calibration_odd.ops") & judged
    assert not listed("calibration_shares.ops") & judged


def test_calls_of_unseen_models_are_not_timed_for_them(tmp_path: Path) -> None:
    assert len(UNSEEN) >= 29
    unseen = called(UNSEEN, tmp_path)
    assert listed("calibration_odd.ops") & unseen == {frozenset(call.split()) for call in TIMED_BEFORE}
    assert len(listed("calibration_shares.ops")) == 495
    assert not listed("calibration_shares.ops") & unseen
