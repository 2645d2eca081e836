"""Which plan? The search among placements, its answer and its report.

    question.py   what is asked: a scenario with a search section, or one line of options
    store.py      what each candidate did, kept in SQLite as it comes, so that a killed search goes on
    driver.py     estimates, short and full simulations, on threads here or any concurrent.futures.Executor
    answer.py     the best plan, how sure, what limits it, what the others lacked
    checks.py     words for checks of an SLO and for overload, which `orrery run` prints too
    text.py       the answer as people read it in a terminal
    command.py    `orrery explore` and `orrery saturate`
    api.py        `orrery.explore`
    report*.py    the page of an answer; saved.py reads a directory back, sensitivity.py and basis.py make parts of it
"""

from __future__ import annotations

