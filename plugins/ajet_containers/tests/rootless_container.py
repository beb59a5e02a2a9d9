"""What a user without rights does with podman, as JSON on standard output: run by test_container.py."""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any


def main() -> None:
    """Prepare podman, start a container, and print what it does."""
    sys.path.append(str(Path(__file__).parents[3] / "tests" / "support"))
    home = tempfile.mkdtemp(prefix="pytest-of-podman-")
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    atexit.register(Path(f"/dev/shm/libpod_rootless_lock_{os.getuid()}").unlink, missing_ok=True)
    os.environ |= {"HOME": home, "XDG_RUNTIME_DIR": home, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    from tests.support.container_fixtures import lacks_podman

    why = lacks_podman()
    print(json.dumps({"lacks": why} if why else asyncio.run(use_container())))


async def use_container() -> dict[str, Any]:
    """Return what a container of an ordinary user does."""
    from ajet_containers.container import open_engine
    from ajet_containers.living import FileBundle
    from ajet_containers.places import ContainerSpec, open_container
    from ajet_containers.settings import ContainerLimits
    from tests.support.container_fixtures import IMAGE

    async with open_container(ContainerSpec("podman", ContainerLimits(), image=IMAGE)) as container:
        bundle = FileBundle()
        bundle.add_file("/tests/test.sh", b"echo of root > /usr/new", 0o755)
        container.put(bundle)
        with container.listen(8080):
            connect = "import socket; print(socket.create_connection(('127.0.0.1', 8080), 5).getpeername()[1])"
            reached = await container.run(["python3", "-c", connect], environment={})
        await container.run(["sh", "/tests/test.sh"], environment={})
        slow = await container.run(["sh", "-c", "sleep 100 & sleep 100"], environment={}, timeout=1)
        return {
            "held": sorted(open_engine("podman").held),
            "reached": reached.stdout,
            "written": (container.get("/usr/new", 100) or b"").decode(),
            "changed": ["A", "/usr/new"] in [list(each) for each in container.list_changes()],
            "ended_by": slow.ended_by,
            "left": container.count_processes(),
        }


if __name__ == "__main__":
    main()
