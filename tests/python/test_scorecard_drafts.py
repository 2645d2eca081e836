"""Speculative rows are never simulated as plain decoding: with a stated acceptance as what they are, else listed."""

import pytest
import scorecard_rows
from orrery.scorecard import cases, command, drafts, outcomes, scenarios

UNSTATED = "speculative decoding; acceptance is not stated"


def compare(tmp_path, *rows, columns=cases.COLUMNS):
    return outcomes.compare(cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", rows, columns)), threads=1)


@pytest.mark.parametrize(
    "cells",
    [
        {"parallelism": "TP8 MTP3"},
        {"parallelism": "TP8 EP1 MTP"},
        {"parallelism": "tp8-mtp3"},
        {"notes": "EAGLE3, 3 draft tokens"},
        {"notes": "speculative"},
        {"notes": "Speculative decoding with a draft model"},
        {"notes": "num_speculative_tokens=3"},
        {"engine_version": "0.18.0-mtp"},
    ],
)
def test_a_labelled_row_without_acceptance_is_listed(tmp_path, cells):
    (outcome,) = compare(tmp_path, scorecard_rows.row(**cells))
    assert outcome.reason == UNSTATED


@pytest.mark.parametrize(("text", "reason"), [("mtp", UNSTATED), ("EAGLE", UNSTATED), ("none", ""), ("", ""), ("false", "")])
def test_the_column_of_sweeps_labels_rows_too(tmp_path, text, reason):
    rows = [scorecard_rows.row(spec_decoding=text)]
    (outcome,) = compare(tmp_path, *rows, columns=[*cases.COLUMNS, "spec_decoding"])
    assert outcome.reason == reason


@pytest.mark.parametrize("notes", ["no MTP", "spec_decoding none", "non-MTP", "without speculative decoding", "MTP off", "speculative decoding: disabled", "spec_decoding-none",
                                   "num_speculative_tokens: 0", "mtp_off", "program"])  # fmt: skip
def test_a_row_that_says_that_it_drafts_nothing_decodes_token_by_token(tmp_path, notes):
    (outcome,) = compare(tmp_path, scorecard_rows.row(notes=notes))
    assert outcome.reason == ""


def test_a_stated_acceptance_is_simulated_and_has_no_interval(tmp_path):
    row = scorecard_rows.row(metric="tpot", value="3", notes="EAGLE3, 3 draft tokens, mean acceptance length 2.5", osl="128")
    (drafted,) = compare(tmp_path, row)
    (plain,) = compare(tmp_path, row | {"notes": ""})
    assert drafted.reason == ""
    assert drafted.comparisons[0].simulated < plain.comparisons[0].simulated
    (metric,) = command.to_dict([drafted])["cases"][0]["metrics"]
    assert (metric["interval"], metric["withheld"]) == (None, "no published run with speculative decoding was compared")


def test_acceptance_is_that_of_each_draft_given_those_before_it():
    fields = dict.fromkeys(drafts.COLUMNS, "")
    one = drafts.read(fields | {"notes": "MTP1, acceptance rate 85 %"})
    assert one.yaml() == "{method: mtp, num_speculative_tokens: 1, acceptance: [0.85]}"
    two = drafts.read(fields | {"notes": "mtp 2; acceptance length 1.75"})
    assert two.yaml() == "{method: mtp, num_speculative_tokens: 2, acceptance: [0.5, 0.5]}"  # 1 + 1/2 + 1/4


@pytest.mark.parametrize(
    ("notes", "words"),
    [
        ("MTP2, acceptance length 9", "found 9 tokens a step, expected 1 to 3"),
        ("MTP, acceptance length 2", "the number of draft tokens is not stated"),
        ("ngram, 3 draft tokens, acceptance length 2", "neither MTP nor EAGLE"),
    ],
)
def test_drafts_that_cannot_be_simulated_are_listed_with_the_reason(tmp_path, notes, words):
    (outcome,) = compare(tmp_path, scorecard_rows.row(notes=notes))
    assert words in outcome.reason


def test_drafts_are_in_the_scenario_of_the_case(tmp_path):
    (case,) = cases.read_cases(scorecard_rows.write(tmp_path / "cases.csv", [scorecard_rows.row(notes="MTP1, acceptance length 1.8")]))
    assert ", speculative: {method: mtp, num_speculative_tokens: 1, acceptance: [0.8]}}" in scenarios.scenario_text(case)
