"""Environments: tools and worlds used by an agent.

Input: a description of an environment (file, name, address). Output: sessions of one attempt each; uses are passed to a
callable as `ajet.schema.tool_use.ToolUse`. Invariants: nothing can harm the machine; resources of an attempt are closed
with the attempt; a possibly delivered call is repeated only if its tool allows repeats; failures are typed at their
origin.
"""
