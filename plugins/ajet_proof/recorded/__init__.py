"""Proves recorded runs (`ajet prove`), and a sample of episodes in each training step while a run trains."""
