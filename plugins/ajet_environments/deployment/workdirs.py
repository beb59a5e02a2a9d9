"""The working folders of an environment's episodes.

Invariant: all servers of an episode share one working folder, removed with the episode.
"""

from __future__ import annotations

from pathlib import Path

from ajet.record.held_folder import HeldFolder, make_workdir
from ajet.record.remove_folder import remove_folder
from ajet_sandbox.identity import choose_uid


class Workdirs:
    """Creates and removes one working folder per episode.

    `prepare_folder` runs on the event loop of the HTTP server, `remove` in any thread.
    """

    def __init__(self) -> None:
        self._root: HeldFolder | None = None
        self._user_of_folder: dict[Path, int | None] = {}

    def prepare_folder(self, episode: str) -> tuple[Path, int | None]:
        """Return (folder, user id) of an episode, and create the folder on first use.

        The user id is None if the servers run as the current user. Spare instances ("") share one folder.
        """
        if self._root is None:
            self._root = HeldFolder("ajet-env-", mode=0o711)
        folder = self._root.path / (episode or "ahead")
        if folder not in self._user_of_folder:
            uid = self._user_of_folder[folder] = choose_uid()
            make_workdir(self._root.path, folder.name, uid)
        return folder, self._user_of_folder[folder]

    def remove(self, episode: str) -> None:
        """Delete the working folder of an episode."""
        if self._root is not None:
            self._user_of_folder.pop(self._root.path / episode, None)
            remove_folder(self._root.path / episode)

    def close(self) -> None:
        """Delete the working folders of all episodes."""
        if self._root is not None:
            self._root.remove()
