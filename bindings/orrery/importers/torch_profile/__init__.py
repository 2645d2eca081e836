"""An engine learned from a profiler's traces: `orrery import torch-profile`."""
