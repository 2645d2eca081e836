"""Runs beside each other, and a run beside what a benchmark measured."""
