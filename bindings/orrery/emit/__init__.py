"""From a plan to what one types next: launch commands of an engine, manifests, and the benchmark that measures the same."""
