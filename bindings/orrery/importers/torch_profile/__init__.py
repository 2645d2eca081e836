"""An engine learned from a profiler's traces: `orrery import torch-profile`."""

from .command import run

__all__ = ["run"]
