"""MongoDB as the store that samplers and trainers on any number of machines share.

The store leases tasks to samplers and passes their episodes to the trainer (`ajet.store.contract`). Four collections
are readable by any client, with AgentRL's names: `Task` (a position, which is a task's place in the training order, and
the process that leases it), `Record` (an episode), `DispatchedSamplingTask` (a model call), `DBRecordData` (a training
sequence). Invariant: an episode's documents decode to the equal episode. pymongo is imported only in this package, and
only when a store is opened.
"""
