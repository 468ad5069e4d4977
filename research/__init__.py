"""What only researchers of this project need; run from a checkout, never installed."""
