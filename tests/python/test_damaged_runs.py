"""Reports of run directories that were damaged at random: refused with the file's name, or rendered; never a traceback.

Reading is tested case by case in test_report.py.
"""

import json
import random
import shutil

import forked
import mutations
import pytest

SCENARIO = """question: q
model: {config: llama-3.1-8b}
machine: hgx-h200
provider: vllm-0.24.0
workload: {poisson: {requests_per_s: 20, num_requests: 12, prompt_tokens: 200, output_tokens: 20}}
"""
NAMES = ("scenario.yaml", "summary.json", "requests.csv", "steps.csv", "step.trace.json")
CASES_A_TEST = 15


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A directory with q.yaml and its run `out`."""
    directory = tmp_path_factory.mktemp("damaged") / "run"
    directory.mkdir()
    (directory / "q.yaml").write_text(SCENARIO, encoding="utf-8")
    ended = forked.run(["run", "q.yaml", "-o", "out"], directory, seconds=60)
    assert ended.exit == 0, ended.output
    # Digests would refuse every damage before it is read.
    (directory / "out" / "SHA256SUMS").unlink(missing_ok=True)
    return directory


def damage(rng, file):
    content = file.read_bytes()
    if file.suffix == ".json" and rng.random() < 0.6:
        file.write_text(json.dumps(mutations.tree(rng, json.loads(content))), encoding="utf-8")
    else:
        file.write_bytes(mutations.text(rng, content))


@pytest.mark.parametrize("name", NAMES)
def test_a_report_of_a_damaged_run_is_refused_by_name_or_rendered(name, run, tmp_path):
    found = []
    for number in range(CASES_A_TEST):
        directory = shutil.copytree(run, tmp_path / str(number))
        page = directory / "out" / "report.html"
        page.write_text("the page before", encoding="utf-8")
        damage(random.Random(f"{name} {number}"), directory / "out" / name)
        ended = forked.run(["report", "out"], directory, seconds=20)
        rendered = page.read_text(encoding="utf-8") != "the page before"
        if ended.complaint or ended.exit not in (0, 2):
            found.append((number, ended.complaint or f"exit {ended.exit}", ended.output[-300:]))
        elif rendered != (ended.exit == 0):
            found.append((number, f"exit {ended.exit}, and the page is {'new' if rendered else 'the old one'}"))
        elif ended.exit == 2 and (name not in ended.output or len(ended.output) > 5000):
            found.append((number, ended.output[:300]))
        shutil.rmtree(directory)
    assert not found, "\n".join(map(str, found))
