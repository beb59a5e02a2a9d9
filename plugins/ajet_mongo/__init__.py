"""MongoDB as the ledger of processes on any number of machines.

In: what the contracts say. Out: four collections that any client of MongoDB can read, in the chain and with the names
that AgentRL gave them: `Task` (a position of the order, and whose it is), `Record` (an episode),
`DispatchedSamplingTask` (a call of a model), `DBRecordData` (a sequence to train on). Invariant: they are the episode,
written from the one schema and read back to the equal one; pymongo is imported in this folder alone, and not before a
store is opened.
"""
