"""A name that AgentJet's users import: `ajet.copilot.job`, and nothing else is here."""
