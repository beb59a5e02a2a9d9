"""The names that AWorld's pages import from `train`; what they mean is in `ajet.integration.aworld`.

Each package here also finds what AWorld's wheel, or a project of yours, has in a package of the same name.
"""

from pkgutil import extend_path

import ajet  # noqa: F401 - from here on AWorld comes in without a trace

__path__ = extend_path(__path__, __name__)
