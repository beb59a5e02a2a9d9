"""`ajet audit`: trace episodes and updates both ways, and compare the record with its chain."""
