"""What the two Qualcomm adapters (`ort_qnn`, `snpe`) share; only they import from here."""
