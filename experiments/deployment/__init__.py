"""From a plan to a folder that a device can run, and from its run back to measured results."""

from experiments.deployment.command import Options, deploy
from experiments.deployment.execute import DeployError, RunError

__all__ = ["DeployError", "Options", "RunError", "deploy"]
