"""A name that AgentJet's users import: `ajet.utils.robust_dashscope`, and nothing else is here."""
