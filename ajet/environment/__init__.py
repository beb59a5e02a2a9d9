"""Tools and worlds: what an agent acts in.

What enters: a description of an environment (a file, a name, an address). What leaves: sessions of one attempt each,
whose uses are handed to whoever keeps them as `ajet.schema.tool_use.ToolUse`, by a plain callable. Invariants: nothing
that runs here can harm the machine; what one attempt opened is closed with it and never reaches the next; a call that
may have been delivered is not repeated unless its tool says that it may be; a failure is typed where it arises.
"""
