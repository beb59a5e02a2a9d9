"""AgentJet's package for the public module `ajet.copilot.job`."""
