"""Rows of nightly images, branches, commits and of no version: which release they are taken to be of, and that it is inferred."""

import datetime

import pytest
import scorecard_rows
from orrery.scorecard import cases, launch, releases, rules, statistics


def case_of(tmp_path, **cells):
    (case,) = cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", [scorecard_rows.row(**cells)]))
    return case


def choices(tmp_path, **cells):
    return rules.choices(case_of(tmp_path, **cells).fields)


def test_releases_are_known_from_the_first_script_that_names_them():
    found = {version: day for day, version, _ in releases.known("vllm")}
    assert found["0.16.0"] == min(line.begin for line in launch.shipped() if line["value"].startswith("vllm/vllm-openai:v0.16.0"))
    assert releases.newest("vllm", datetime.date(2026, 3, 5))[0] == "0.16.0"
    assert releases.newest("vllm", datetime.date(2020, 1, 1))[0] == "0.10.2"  # the first that is known
    assert releases.newest("lmdeploy", None) is None


@pytest.mark.parametrize("version", ["nightly-2026-09-01", "main", "latest", "dev", "4080263bb2c5d10deac17aaeb88e0823bc35bca9", ""])
def test_a_build_that_is_no_release_is_the_newest_known_and_counts_as_inferred(tmp_path, version):
    found = choices(tmp_path, engine_version=version)
    newest = max((version for _, version, _ in releases.known("vllm")), key=launch.version_key)
    assert (found["engine_version"].value, found["engine_version"].basis) == (newest, rules.INFERRED)
    assert found["profile"].value == "vllm"  # steps are prepared while the GPU runs the one before since 0.14
    assert found["async_scheduling"].basis == rules.INFERRED  # releases differ


def test_a_build_of_the_main_branch_has_what_the_next_release_has(tmp_path):
    # Scripts had 0.13.0 on that day, which runs steps one after the other; the next that they had is 0.15.1.
    assert choices(tmp_path, engine_version="nightly-2026-02-10")["engine_version"].value == "0.15.1"
    assert choices(tmp_path, engine_version="latest", notes="measured 2026-02-10")["engine_version"].value == "0.13.0"


def test_the_day_of_the_row_counts_where_the_version_has_none(tmp_path):
    assert choices(tmp_path, engine_version="", notes="measured 2026-03-30")["engine_version"].value == "0.18.0"


def test_an_empty_version_counts_what_releases_do_differently(tmp_path):
    stated, empty = (rules.num_inferred(case_of(tmp_path, engine_version=version).fields) for version in ("0.18.0", ""))
    found = choices(tmp_path, engine_version="")
    assert stated == 0
    assert empty == sum(choice.basis == rules.INFERRED for choice in found.values()) >= 3
    assert found["gpu_memory_utilization"].basis == rules.DEFAULT  # 0.9 in all that were read


def test_an_inferred_release_is_no_version_to_group_by(tmp_path):
    assert statistics.groups(case_of(tmp_path, engine_version=""))["version"] == "vllm of no known version"


def test_releases_have_numbers_with_dots():
    assert all(releases.is_release(text) for text in ("0.17", "v0.18.0", "1.1.0rc2.post2", "0.11.2.dev358"))
    assert not any(releases.is_release(text) for text in ("", "main", "nightly-2026-09-01", "4080263bb2c5", "latest"))
