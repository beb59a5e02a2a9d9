"""An environment of Harbor by podman's command, for Harbor's own Python: neither compose nor a daemon is needed."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities


class PodmanCommand(BaseEnvironment):
    """One container by `podman run`, without network."""

    @staticmethod
    def type() -> str:
        return "podman-command"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities(disable_internet=True)

    def _validate_definition(self) -> None:
        pass

    async def _apply_network_policy(self, network_policy: object) -> None:
        pass

    async def start(self, force_build: bool) -> None:
        self._name = f"harbor-{self.session_id.lower()}"
        image = self.task_env_config.docker_image
        if image is None:
            image = f"localhost/{self._name}"
            await self._podman("build", "--pull=never", "--network", "none", "-t", image, str(self.environment_dir))
        limits = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=4096:4096"]
        if self.task_env_config.workdir:
            limits += ["--workdir", self.task_env_config.workdir]
        await self._podman(
            "run", "-d", "--pull", "never", "--network", "none", "--log-driver", "none", "--name", self._name, *limits,
            image, "sh", "-c", "sleep infinity",
        )  # fmt: skip
        await self.exec("mkdir -p /logs/agent /logs/verifier /logs/artifacts && chmod 777 /logs/*", user="0")

    async def stop(self, delete: bool) -> None:
        await self._podman("rm", "--force", "--time", "0", self._name)

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        await self._podman("cp", str(source_path), f"{self._name}:{target_path}")

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await self.exec(f"mkdir -p {target_dir}", user="0")
        await self._podman("cp", f"{source_dir}/.", f"{self._name}:{target_dir}")

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        await self._podman("cp", f"{self._name}:{source_path}", str(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await self._podman("cp", f"{self._name}:{source_dir}/.", str(target_dir))

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        words = ["exec"]
        for name, value in (self._merge_env(env) or {}).items():
            words += ["--env", f"{name}={value}"]
        who = self._resolve_user(user)
        words += ["--user", "0" if who == "root" else str(who)] if who is not None else []
        words += ["--workdir", cwd] if cwd else []
        done = await self._podman(*words, self._name, "bash", "-c", command, timeout=timeout_sec, check=False)
        return ExecResult(stdout=done.stdout, stderr=done.stderr, return_code=done.returncode)

    async def _podman(
        self, *words: str, timeout: float | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        def run() -> subprocess.CompletedProcess[str]:
            return subprocess.run(["podman", *words], capture_output=True, text=True, timeout=timeout)

        done = await asyncio.to_thread(run)
        if check and done.returncode:
            raise RuntimeError(f"podman {words[0]}: {done.stderr.strip()}")
        return done
