"""Published observations (R9 to R18) and case T11(c), reproduced on the simulator."""

from experiments.scenarios.catalogue import Study, study, study_names

__all__ = ["Study", "study", "study_names"]
