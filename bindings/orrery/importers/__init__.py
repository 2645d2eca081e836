"""Importers of published measurements into topologies/."""
