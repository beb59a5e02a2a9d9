"""The trained run that the kernel's contract tests share."""

from tests.contract.conftest import tool_project as tool_project
