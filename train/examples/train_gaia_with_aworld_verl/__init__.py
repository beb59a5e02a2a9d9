"""Package `train.examples.train_gaia_with_aworld_verl` of AWorld's layout, explained in the docstring of `train`."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
