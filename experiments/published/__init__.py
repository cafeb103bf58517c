"""The published tables R1 to R16 as data: somebody's figures, cited, never presented as ours."""

from experiments.published.tables import Table, load_table, table_names

__all__ = ["Table", "load_table", "table_names"]
