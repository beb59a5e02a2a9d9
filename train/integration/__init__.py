"""Package `train.integration` of AWorld's layout, explained in the docstring of `train`."""

from pkgutil import extend_path

__path__ = extend_path(__path__, __name__)
