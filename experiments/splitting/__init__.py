"""What `python -m experiments.splits` does: ask, search, cut and run the best plans, report and draw."""
