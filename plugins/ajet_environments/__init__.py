"""Hosted environments: tool servers behind one HTTP address, simulated environments, and services of a run."""
