"""Where each node of a graph runs, why not where it was asked, what that costs and what would mend it."""

from experiments.explain.command import Options, explain
from experiments.explain.rules import Rule, RuleError, parse_rule

__all__ = ["Options", "Rule", "RuleError", "explain", "parse_rule"]
