"""The trainer: one loop for every training whose optimizer is in this process, and what a step promises."""
