"""Prices, plans, runs, the scorecard and the cases of GPU checks are what they were (tests/frozen/README.md)."""

import frozen
import pytest

MOST_SHOWN = 40


@pytest.mark.slow
@pytest.mark.parametrize("kind", frozen.KINDS, ids=lambda kind: kind.name)
def test_what_is_frozen_has_not_moved(kind):
    try:
        found = kind.make()
    except frozen.NotBuilt as error:
        if kind.name != "checks":  # which need the CUDA toolkit
            raise
        pytest.skip(str(error))
    if kind.name == "checks" and not kind.path.exists():
        pytest.skip(f"{kind.path.relative_to(frozen.ROOT)} is not written: python tests/frozen --write checks")
    assert found
    lines = frozen.moved(frozen.read(kind.path), found, in_parts=kind.in_parts and not frozen.ALL)
    shown = lines[:MOST_SHOWN] + [f"... {len(lines) - MOST_SHOWN} more"] * (len(lines) > MOST_SHOWN)
    assert not lines, "\n".join([
        f"{len(lines)} lines of {kind.path.relative_to(frozen.ROOT)} moved; if that is meant:",
        f"  python tests/frozen --write {kind.name}",
        *shown,
    ])  # fmt: skip


def test_a_digest_that_moved_is_shown_old_and_new():
    before = {"same": "aa 1", "moved": "bb 2", "gone": "cc 3"}
    after = {"same": "aa 1", "moved": "dd 2", "new": "ee 4"}
    assert frozen.moved(before, after) == ["- cc 3 gone", "- bb 2 moved", "+ dd 2 moved", "+ ee 4 new"]
    # Of a part, what was not made is not missed; what differs is still shown.
    assert frozen.moved(before, after, in_parts=True) == ["- bb 2 moved", "+ dd 2 moved", "+ ee 4 new"]


def test_digests_are_read_as_they_were_written(tmp_path):
    digests = {"a name of words": frozen.digest_of(b"one\ntwo\n"), "another": frozen.digest_of(b"")}
    frozen.write(tmp_path / "x.txt", digests)
    assert frozen.read(tmp_path / "x.txt") == digests
    # 128 bits, and so many lines
    assert [len(text.split()[0]) for text in digests.values()] == [32, 32]
    assert digests["a name of words"].split()[1] == "2"
