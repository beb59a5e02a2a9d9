"""Package `train.examples.train_gaia_with_aworld_verl.metrics` of AWorld's layout, explained in the docstring of
`train`.
"""
