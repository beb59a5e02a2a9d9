"""`ajet env`: starts, tries, plans and renders environments; `ajet_environments.deployment` describes them."""
