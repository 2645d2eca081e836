"""How much of what is long a run of the tests takes: a fixed share of it, or all where ORRERY_TEST_ALL is 1 (`./orrery test --all`)."""

import os

ALL = os.environ.get("ORRERY_TEST_ALL") == "1"


def share(cases, *, one_in):
    """Every `one_in`-th of the cases, the first among them; all of them in a run of everything."""
    return list(cases)[:: 1 if ALL else one_in]
