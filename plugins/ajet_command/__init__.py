"""Agents that are command-line programs: one process tree per episode.

Input: settings of a YAML section, a task, a model endpoint. Output: the command's output and exit code. Invariants: the
command gets the episode's address and key in its environment, never in arguments. All its processes end with it, even
if ajet is killed. Output and folder sizes are bounded.
"""
