"""`ajet prove`, and the proof sample of each training step."""
