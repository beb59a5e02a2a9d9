"""Packages load the names that they offer when these are first used."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ajet.algorithm
import ajet.client
import ajet.context_tracker
import ajet.record
import ajet.store

PACKAGES = (ajet.algorithm, ajet.client, ajet.context_tracker, ajet.record, ajet.store)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_every_offered_name_is_there(package):
    assert [name for name in package.__all__ if not hasattr(package, name)] == []


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_another_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_importing_a_package_loads_no_offered_module():
    program = "import sys, ajet.client, ajet.store; print(*sorted(name for name in sys.modules if 'ajet' in name))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [
        "ajet",
        "ajet._version",
        "ajet.client",
        "ajet.schema",
        "ajet.schema.lazy_names",
        "ajet.store",
    ]
