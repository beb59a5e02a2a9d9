"""Names that AWorld's pages import from `train`, implemented in `ajet_aworld`.

Each package below also finds modules of AWorld's wheel, or of the user's project, in a package of the same name.
"""

from pkgutil import extend_path

from ajet_aworld.packages import install_finders

install_finders()  # from here on AWorld's import is quiet, also in a script that ajet does not start
__path__ = extend_path(__path__, __name__)
