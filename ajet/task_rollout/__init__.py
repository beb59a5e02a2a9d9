"""AgentJet's package for the public module `ajet.task_rollout.dashscope_llm_bridge`."""
