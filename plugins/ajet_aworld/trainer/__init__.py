"""AWorld's AgentTrainer: agent, data, reward and configuration in, a run of ajet out.

`agent_trainer` checks and starts, `trainer_processor` is the contract of training engines, `registry` lists them,
`run_processor` launches ajet's runs; `agents`, `data` and `reward` convert the inputs. Invariant: no Python source is
generated, and no secret is written: the run's configuration describes the agent with variables by name.
"""
