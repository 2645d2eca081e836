"""Published serving measurements against the simulator: `orrery scorecard`.

cases.read_cases -> outcomes.compare -> statistics, calibration, explain -> text, page. `intervals.interval` serves
any run; fit.py sets what may be fitted.
"""
