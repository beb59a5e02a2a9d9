"""Git repositories of the working folder.

Invariants: a repository's path goes through `Folder`. An argument readable as an option is refused. Hooks and pagers
are off. A repository's own configuration can still name programs; they run in the sandbox, as with a terminal.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from .process import run
from .tool import ToolError
from .tool_server import ToolServer

Repository = Annotated[str, Field(description="path of the repository in the working folder")]
Context = Annotated[int, Field(description="lines around a change", ge=0, le=1000)]
QUIET = {
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_AUTHOR_NAME": "agent",
    "GIT_AUTHOR_EMAIL": "agent@localhost",
    "GIT_COMMITTER_NAME": "agent",
    "GIT_COMMITTER_EMAIL": "agent@localhost",
}
ALWAYS = ("-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-c", "safe.directory=*")


class Repositories(ToolServer):
    """Git repositories, with the tools of the reference Git server."""

    def git_status(self, repo_path: Repository) -> str:
        """State of the working tree."""
        return self._run_git(repo_path, "status")

    def git_diff_unstaged(self, repo_path: Repository, context_lines: Context = 3) -> str:
        """Changes in the working tree, not staged."""
        return self._run_git(repo_path, "diff", f"--unified={context_lines}")

    def git_diff_staged(self, repo_path: Repository, context_lines: Context = 3) -> str:
        """Changes staged for the next commit."""
        return self._run_git(repo_path, "diff", f"--unified={context_lines}", "--cached")

    def git_diff(self, repo_path: Repository, target: str, context_lines: Context = 3) -> str:
        """Difference to a branch or commit."""
        return self._run_git(repo_path, "diff", f"--unified={context_lines}", _check_revision(target), "--")

    def git_commit(self, repo_path: Repository, message: str) -> str:
        """Commit the staged changes with a message."""
        return self._run_git(repo_path, "commit", f"--message={message}")

    def git_add(self, repo_path: Repository, files: list[str]) -> str:
        """Stage files for the next commit."""
        return self._run_git(repo_path, "add", "--", *files) or "staged"

    def git_reset(self, repo_path: Repository) -> str:
        """Unstage all files of the index."""
        return self._run_git(repo_path, "reset") or "nothing is staged"

    def git_log(
        self,
        repo_path: Repository,
        max_count: Annotated[int, Field(ge=1, le=1000)] = 10,
        start_timestamp: Annotated[str, Field(description="as 2024-01-15 or 2 weeks ago")] = "",
        end_timestamp: str = "",
    ) -> str:
        """Commits, the newest one first."""
        since = [f"--since={start_timestamp}"] if start_timestamp else []
        until = [f"--until={end_timestamp}"] if end_timestamp else []
        return self._run_git(repo_path, "log", f"--max-count={max_count}", *since, *until)

    def git_create_branch(self, repo_path: Repository, branch_name: str, base_branch: str = "") -> str:
        """Make a branch of the repository."""
        base = [_check_revision(base_branch)] if base_branch else []
        return (
            self._run_git(repo_path, "branch", _check_revision(branch_name), *base) or f"branch {branch_name} is there"
        )

    def git_checkout(self, repo_path: Repository, branch_name: str) -> str:
        """Switch to a branch of the repository."""
        return self._run_git(repo_path, "checkout", _check_revision(branch_name), "--")

    def git_show(self, repo_path: Repository, revision: str) -> str:
        """A commit, with its changes."""
        return self._run_git(repo_path, "show", _check_revision(revision), "--")

    def git_branch(
        self,
        repo_path: Repository,
        branch_type: Literal["local", "remote", "all"] = "local",
        contains: str = "",
        not_contains: str = "",
    ) -> str:
        """Names of the repository's branches."""
        selection: list[str] = {"local": [], "remote": ["--remotes"], "all": ["--all"]}[branch_type]
        options = [f"--contains={_check_revision(contains)}"] if contains else []
        options += [f"--no-contains={_check_revision(not_contains)}"] if not_contains else []
        return self._run_git(repo_path, "branch", *selection, *options)

    def _run_git(self, repo_path: str, *arguments: str) -> str:
        """Run a git command in a repository below the working folder, and return its output.

        Raises:
            ToolError: git failed (with its error output) or exceeded the time limit.
        """
        if any("\0" in argument for argument in arguments):
            raise ToolError("the argument contains a zero byte; remove it")
        with self.folder.directory(repo_path, write=True):
            root, parts = self.folder.parts(repo_path, write=True)
            finished = run(
                ["git", "--no-pager", *ALWAYS, *arguments],
                folder=root.joinpath(*parts),
                timeout=self.settings.timeout,
                limit=self.settings.max_bytes,
                # Without the ceiling git would use a repository above the working folder.
                more={**QUIET, "GIT_CEILING_DIRECTORIES": str(root.parent)},
            )
        if finished.code is None:
            raise ToolError("git exceeded its time limit")
        if finished.code:
            raise ToolError((finished.errors or finished.output).strip() or f"git ended with {finished.code}")
        return finished.output.strip()


tools = Repositories.tools


def _check_revision(revision: str) -> str:
    """Return the name of a branch or commit. Raises ToolError for one that git would read as an option."""
    if not revision or revision.startswith("-"):
        raise ToolError(f"{revision[:60]!r} names no branch or commit")
    return revision
