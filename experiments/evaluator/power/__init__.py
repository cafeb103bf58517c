"""Energy with a meter (sensors), and how well energy without one can be modelled (fits to MLPerf's power runs)."""
