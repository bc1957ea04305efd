"""Pictures of runs, made from a run directory alone."""
