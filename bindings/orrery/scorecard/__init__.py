"""Published serving measurements against the simulator: `orrery scorecard`."""

from .cases import Case, Measurement, read_cases, select
from .outcomes import Comparison, Outcome, compare

__all__ = ["Case", "Comparison", "Measurement", "Outcome", "compare", "read_cases", "select"]
