"""Which processor, and why: an explainable rule learned from evaluations, and the plan to deploy."""
