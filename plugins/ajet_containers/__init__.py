"""Containers for tasks, and Harbor's task folders.

Each episode has a container of its own. Its agent calls the model through a socket on the container's loopback that the
host serves, and a verifier runs in the same container after the agent.
"""
