"""What the result of a run depends on besides its config."""
