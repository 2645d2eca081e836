"""Ten seconds of the fuzzer, thirty in a run of everything, and proof that its checks of a run directory notice what they are for."""

import json
import os
import shutil

import fuzzer
import invariants
import pytest
import services
from share import ALL

SECONDS = float(os.environ.get("ORRERY_FUZZ_SECONDS", "30" if ALL else "10"))
SEED = int(os.environ.get("ORRERY_FUZZ_SEED", "1"))


def test_what_is_damaged_at_random_is_refused_or_runs_to_consistent_figures(record_property):
    counts, found = fuzzer.fuzz(seconds=SECONDS, seed=SEED, failures=fuzzer.forked.ROOT / "build" / "fuzz")
    record_property("fuzzer", f"fuzzer, seed {SEED}, {SECONDS:.0f} s\n{fuzzer.table(counts)}")
    assert not found, "\n".join(found)
    assert any(end == "exit 0" for _, end in counts)


def test_cases_depend_on_seed_and_number_alone():
    draws = [[fuzzer.cases.draw(seed, number) for number in range(40)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1]
    assert all(one != other for one, other in zip(draws[0], draws[2], strict=True))


def test_a_failure_is_written_with_everything_needed_to_repeat_it(tmp_path):
    for number in range(len(fuzzer.cases.KINDS)):
        case = fuzzer.cases.draw(1, number)
        assert fuzzer.cases.Case.read(case.write(tmp_path)) == case


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a service with prompts, decodes and several replicas."""
    import orrery

    directory = tmp_path_factory.mktemp("fuzz")
    scenario = services.service(services.random.Random(5)) | {
        "provider": "vllm-0.24.0", "model": {"config": "llama-3.1-8b"}, "placement": {"replicas": 2}, "step_level": "closed_form",
        "workload": {"poisson": {"requests_per_s": 20, "num_requests": 12, "prompt_tokens": 200, "output_tokens": 20}}}  # fmt: skip
    scenario.pop("disaggregation", None)
    (directory / "case.yaml").write_text(services.yaml_of(scenario), encoding="utf-8")
    return orrery.simulate(orrery.load(directory / "case.yaml")).write(directory / "out", report=False)


def test_a_sound_run_violates_nothing(run):
    assert invariants.violations(run) == []


def edit_summary(path, value):
    def edit(directory):
        file = directory / "summary.json"
        summary = json.loads(file.read_text(encoding="utf-8"))
        *parents, last = path.split(".")
        holder = summary
        for key in parents:
            holder = holder[key]
        assert last in holder
        holder[last] = value
        file.write_text(json.dumps(summary), encoding="utf-8")

    return edit


def edit_cell(name, column, change):
    def edit(directory):
        file = directory / name
        header, first, *rest = file.read_text(encoding="utf-8").splitlines()
        cells = dict(zip(header.split(","), first.split(","), strict=True))
        cells[column] = repr(change(float(cells[column])))
        file.write_text("\n".join((header, ",".join(cells.values()), *rest)) + "\n", encoding="utf-8")

    return edit


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (edit_summary("ttft_s.mean", float("nan")), "NaN"),
        (edit_summary("output_tokens_per_s", float("inf")), "Infinity"),
        (edit_summary("duration_s", -1), "summary.duration_s is -1"),
        (edit_summary("basis.roofline", 0.9999), "basis adds up to"),
        (edit_summary("kv_utilisation.max", 1.01), "kv_utilisation"),
        (edit_summary("slo_attainment", 1.5), "slo_attainment"),
        (edit_summary("ttft_s.p50", 1e9), "ttft_s is"),
        (edit_summary("output_tokens", 239), "output_tokens of all requests"),
        (edit_summary("memory_per_gpu.weights_bytes", 1e15), "memory in use"),
        (edit_summary("num_kv_blocks", 1), "KV blocks are in use"),
        (edit_cell("requests.csv", "first_token_s", lambda _: 1e6), "times are"),
        (edit_cell("requests.csv", "e2e_s", lambda old: old * 2), "e2e_s is"),
        (edit_cell("requests.csv", "cached_tokens", lambda _: 10**6), "tokens do not add up"),
        (edit_cell("requests.csv", "id", lambda _: 5), "not numbered"),
        (edit_cell("steps.csv", "prefill_tokens", lambda old: old + 1), "prompt tokens were computed"),
        (edit_cell("steps.csv", "num_decodes", lambda old: old + 1), "tokens were decoded"),
        (edit_cell("steps.csv", "duration_s", lambda _: 100.0), "begins before the one before has ended"),
    ],
)
def test_the_checks_of_a_run_notice(run, tmp_path, damage, words):
    directory = shutil.copytree(run, tmp_path / "out")
    damage(directory)
    assert any(words in what for what in invariants.violations(directory))
