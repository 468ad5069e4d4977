"""Studies, measurements and training for research on vidspec; run from a checkout, never installed."""
