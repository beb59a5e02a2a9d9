"""The names that AWorld's pages import from `train`; what they mean is in `ajet_aworld`.

Each package here also finds what AWorld's wheel, or a project of yours, has in a package of the same name.
"""

from pkgutil import extend_path

from ajet_aworld.startup import start

start()  # from here on AWorld's import is quiet, also in a script that ajet does not start
__path__ = extend_path(__path__, __name__)
