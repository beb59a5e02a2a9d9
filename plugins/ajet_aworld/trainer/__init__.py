"""AWorld's AgentTrainer: agent, data, reward and configuration in, a run of ajet's out.

`agent_trainer` checks and starts, `trainer_processor` is the contract of what trains, `registry` knows them by name,
`run_processor` is the one that launches ajet's own runs; `agents`, `data` and `reward` are its three kinds of input.
Invariant: no Python source is generated, and no secret is written: what an agent is stands in the run's configuration
with variables by name.
"""
