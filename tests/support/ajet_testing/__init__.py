"""What tests and checks of this repository share: a pytest plug-in, the list of our packages, and import rules.

Installed by `make setup` for the kernel's tests and for those of each plug-in; never part of the wheel.
"""
