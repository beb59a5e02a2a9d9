"""AgentJet's package for the public module `ajet.utils.robust_dashscope`."""
