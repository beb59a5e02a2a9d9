"""AWorld's AgentTrainer interface: turns agent, data, reward and configuration into a training run of ajet.

`agent_trainer` checks and starts, `trainer_processor` is the interface of training engines, `registry` lists them,
`run_processor` launches ajet's runs. `agents`, `data` and `reward` convert the inputs. Invariant: no Python source is
generated, and no secret is written: the run's configuration names variables instead of their values.
"""
