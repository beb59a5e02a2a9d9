"""A name that AgentJet's users import: `ajet.task_rollout.dashscope_llm_bridge`. Our episodes are played in `rollout`."""
