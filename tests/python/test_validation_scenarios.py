"""scenarios/validate: each can be predicted, and no step that is judged is among what the predictions are made from."""

import itertools
import re
from pathlib import Path

import pytest

import orrery
from orrery import _core
from orrery.validation.held_out import judged_calls

FOLDER = Path(__file__).resolve().parents[2] / "scenarios/validate"
JUDGED = sorted(FOLDER.glob("llama_*.yaml"))


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Directories of all scenarios with steps of their own, by name."""
    folder = tmp_path_factory.mktemp("prepared")
    directories = {}
    for path in [*JUDGED, *FOLDER.glob("fit_*.yaml")]:
        directories[path.stem] = folder / path.stem
        directories[path.stem].mkdir()
        _core.predict_validation(orrery.load(path)).write(str(directories[path.stem]))
    return directories


def test_every_scenario_can_be_prepared(prepared: dict[str, Path]) -> None:
    assert len(JUDGED) == 20
    for name, directory in prepared.items():
        assert list((directory / "steps").glob("*.plan")), name


@pytest.mark.parametrize("path", sorted(FOLDER.glob("serve_*.yaml")), ids=lambda path: path.stem)
def test_services_load(path: Path) -> None:
    assert orrery.load(path).name == path.stem


def test_services_whose_names_end_alike_serve_the_same() -> None:
    served: dict[str, set[str]] = {}
    for path in FOLDER.glob("serve_*.yaml"):
        if found := re.fullmatch(r"serve_\w+?_((?:azure|closed)_\d+)", path.stem):
            text = path.read_text(encoding="utf-8")
            workload = re.search(r"^workload:.*\n(?: .*\n)*", text, re.MULTILINE)
            assert workload, path
            served.setdefault(found[1], set()).add(workload[0])
    assert {load for load, workloads in served.items() if len(workloads) > 1} == set()
    assert len(served) >= 8


def test_calls_to_calibrate_are_of_no_judged_step(prepared: dict[str, Path]) -> None:
    lines = (FOLDER / "calibration.ops").read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    calls = judged_calls(prepared[path.stem] for path in JUDGED)
    judged = {frozenset([kernel, dtype, *(f"{name}={size}" for name, size in dims)]) for kernel, dtype, dims in calls}
    assert not {frozenset(line.split()) for line in listed} & judged


def test_steps_that_factors_are_fitted_on_are_not_judged(prepared: dict[str, Path]) -> None:
    steps = {name: {path.read_text(encoding="utf-8") for path in (directory / "steps").glob("*.step")} for name, directory in prepared.items()}
    for fitted, judged in itertools.product([name for name in steps if name.startswith("fit_")], [path.stem for path in JUDGED]):
        assert not steps[fitted] & steps[judged]


# What is executed besides plain tp, dp, ep, pp, cp and halves; each by a scenario at least.
PLACEMENTS = {
    "place_cp_dealt": {"cp_decodes": "dealt", "expert_comm": "graph"},
    "place_cp_ring": {"cp_prefill": "ring", "cp_decodes": "dealt"},
    "place_dp2_lengths": {"dp": "2", "ep": "2", "expert_comm": "graph"},
    "place_dp2_lengths_v2_lite": {"dp": "2", "ep": "2", "expert_comm": "graph"},
    "place_replicated": {"o_proj": "replicated", "lm_head": "replicated", "shared_expert": "replicated", "split_all_reduce": "true"},
    "place_sharded_halves": {"o_proj": "sharded", "two_batch_overlap": "true"},
    "place_sharded_joined": {"o_proj": "sharded", "lm_head": "joined"},
    "place_sp_gathers": {"sp": "true", "attention_gather": "projected", "moe_gather": "routed", "shared_expert": "replicated"},
    "serve_qwen3_30b_dp2_waits": {"dp_balance_timeout_iters": "20", "dp_balance_batching_wait_iters": "4"},
}


def test_scenarios_of_placements_are_those_of_the_table() -> None:
    assert {path.stem for path in (FOLDER / "placements").glob("*.yaml")} == set(PLACEMENTS)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_every_choice_of_a_placement_can_be_prepared(name: str, tmp_path: Path) -> None:
    scenario = orrery.load(FOLDER / "placements" / f"{name}.yaml")
    written = [line.strip() for line in scenario.to_yaml().splitlines()]
    for key, value in PLACEMENTS[name].items():
        assert f"{key}: {value}" in written
    _core.predict_validation(scenario).write(str(tmp_path))
    assert list((tmp_path / "steps").glob("*.plan")) or (tmp_path / "serve.txt").is_file()


@pytest.mark.parametrize("path", sorted((FOLDER / "layers").glob("*.yaml")), ids=lambda path: path.stem)
def test_layers_by_themselves_can_be_prepared(path: Path, tmp_path: Path) -> None:
    prediction = _core.predict_validation(orrery.load(path))
    assert prediction.steps and all(step["layers"] > 1 for step in prediction.steps)
    prediction.write(str(tmp_path))
    assert len(list((tmp_path / "steps").glob("*.plan"))) == len(prediction.steps)
