"""A name that AgentJet's users import: `ajet.task_rollout.dashscope_llm_bridge`, and nothing else is here."""
