"""Cost of a run on hardware that is not here."""
