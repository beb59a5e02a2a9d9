"""Hosted environments: tool servers behind one address, worlds of agents, and services beside a run."""
