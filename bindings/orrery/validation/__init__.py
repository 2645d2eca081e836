"""What was simulated against what GPUs did: reading both, comparing, attributing the error, reporting.

`orrery validate` is command.py. A directory that it prepared and `orrery-gpu` executed becomes validation.json,
validation.html and timelines.trace.json. Nothing is imported here: the command line asks for the options alone.
"""
