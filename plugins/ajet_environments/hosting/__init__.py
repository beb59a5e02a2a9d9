"""`ajet env`: environments started, tried, planned for and described for Kubernetes. What they are is in
ajet/environment/."""
