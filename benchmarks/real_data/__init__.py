"""Fits to public sets of real measurements, scored on what they have not seen."""
