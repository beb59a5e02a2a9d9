"""MongoDB as the store of processes on any number of machines.

In and out: the store contract's values. The database has four collections readable by any client, with AgentRL's names:
`Task` (a position and its holder), `Record` (an episode), `DispatchedSamplingTask` (a model call), `DBRecordData` (a
training sequence). Invariant: an episode's documents decode to the equal episode; pymongo is imported only in this
package, and only when a store is opened.
"""
