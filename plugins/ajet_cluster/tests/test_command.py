"""`ajet cluster render`: what the texts say of an experiment, and what is refused."""

from __future__ import annotations

import shlex
import subprocess
from importlib import metadata
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from ajet.cli import launcher
from tests.support.kuberay_schema import RAY_JOB
from tests.support.verl_fixtures import without_verl

pytestmark = [without_verl, pytest.mark.slow]
TREE: dict[str, Any] = {
    "model": {"path": "some/model"},
    "task_reader": {"type": "random_dummy"},
    "rollout": {"user_workflow": "agent.py->Agent"},
    "trainer_common": {"nnodes": 3, "n_gpus_per_node": 4},
    "data": {"train_batch_size": 12},
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch) -> Path:
    """A folder with a YAML and an agent; secrets lie in .env."""
    folder = tmp_path / "my project"
    folder.mkdir()
    write(folder)
    (folder / "agent.py").write_text("from ajet import Workflow\n\n\nclass Agent(Workflow):\n    pass\n")
    (folder / ".env").write_text("TOOL_PASSWORD=hunter2\nexport OTHER='x y'\n")
    monkeypatch.chdir(tmp_path)
    return folder


def write(folder: Path, name: str = "My Run_1.yaml", **trainer: Any) -> Path:
    tree = {**TREE, "trainer_common": {**TREE["trainer_common"], **trainer}}
    (folder / name).write_text(yaml.safe_dump({"ajet": tree}))
    return folder / name


@pytest.fixture
def render(capsys, monkeypatch):
    """`ajet cluster render …` in this process: (exit code, stdout, stderr)."""
    monkeypatch.setenv("NO_COLOR", "1")

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            launcher.main(["cluster", "render", *arguments])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return call


def kuberay(render, conf: Path, *more: str) -> dict[str, Any]:
    code, text, err = render("kuberay", "--conf", str(conf), "--image", "registry/ajet:1", *more)
    assert code == 0, err
    return yaml.safe_load(text)


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    cluster = manifest["spec"]["rayClusterSpec"]
    return [cluster["headGroupSpec"]["template"], *(each["template"] for each in cluster.get("workerGroupSpecs", []))]


def problems(manifest: dict[str, Any]) -> list[str]:
    """What KubeRay's fields and Kubernetes' own schema have against it."""
    validate = pytest.importorskip("kubernetes_validate")
    found = [each.message for each in jsonschema.Draft202012Validator(RAY_JOB).iter_errors(manifest)]
    for template in pods(manifest):
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x", **template.get("metadata", {})}}
        try:
            validate.validate({**pod, "spec": template["spec"]}, validate.latest_version(), strict=True)
        except validate.ValidationError as error:
            found.append(str(error))
    return found


@pytest.mark.parametrize(
    "trainer, more",
    [
        ({}, ()),
        ({"nnodes": 1}, ("--claim", "data")),
        ({"device": "cpu"}, ("--claim", "data/agents/one")),
        ({"device": "npu"}, ()),
    ],
    ids=str,
)
def test_the_manifest_is_valid_for_kuberay_and_kubernetes(project, render, trainer, more):
    manifest = kuberay(render, write(project, **trainer), *more)
    assert problems(manifest) == []


@pytest.mark.parametrize("ray, guarded", [("2.52.0", True), ("3.0.0rc1", True), ("2.51.2", False), ("", False)])
def test_ray_takes_commands_from_those_who_know_a_token(project, render, monkeypatch, ray, guarded):
    here = metadata.version

    def installed(name: str) -> str:
        if name == "ray" and not ray:
            raise metadata.PackageNotFoundError(name)
        return ray if name == "ray" else here(name)

    monkeypatch.setattr(metadata, "version", installed)
    manifest = kuberay(render, project / "My Run_1.yaml")
    found = manifest["spec"]["rayClusterSpec"].get("authOptions")
    assert found == ({"mode": "token"} if guarded else None)


def test_the_validation_sees_what_is_wrong(project, render):
    manifest = kuberay(render, project / "My Run_1.yaml")
    manifest["spec"]["entryPoint"] = "x"
    pods(manifest)[0]["spec"]["containers"][0]["volumeMounts"][0]["path"] = "/x"
    assert len(problems(manifest)) == 2


def test_a_ray_job_has_the_nodes_accelerators_and_command_of_the_experiment(project, render):
    manifest = kuberay(render, project / "My Run_1.yaml", "data.train_batch_size=24", "rollout.temperature=0.5")
    assert manifest["metadata"]["name"] == "ajet-my-run-1"
    conf, record = str(project / "My Run_1.yaml"), str(project / "launcher_record")
    assert shlex.split(manifest["spec"]["entrypoint"]) == [
        "ajet", "--conf", conf, "--backbone", "verl", "--with-ray-cluster", "--exp-dir", record,
        "data.train_batch_size=24", "rollout.temperature=0.5",
    ]  # fmt: skip
    cluster = manifest["spec"]["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert cluster["rayVersion"] == version("ray") and manifest["spec"]["shutdownAfterJobFinishes"] is True
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"] == 2
    assert workers["rayStartParams"]["num-gpus"] == cluster["headGroupSpec"]["rayStartParams"]["num-gpus"] == "4"
    for template in pods(manifest):
        (container,) = template["spec"]["containers"]
        assert container["image"] == "registry/ajet:1" and container["workingDir"] == str(project)
        assert container["resources"]["limits"] == {"nvidia.com/gpu": 4}
        assert {"name": "project", "mountPath": str(project)} in container["volumeMounts"]
        assert {"name": "project", "hostPath": {"path": str(project), "type": "Directory"}} in template["spec"][
            "volumes"
        ]


def test_servers_apart_from_the_trainer_have_nodes_of_their_own(project, render):
    conf = write(project, mode="separate_async")
    apart = {"nnodes": 2, "n_gpus_per_node": 4, "checkpoint_engine": {"backend": "nccl"}}
    conf.write_text(conf.read_text() + yaml.safe_dump({"verl": {"actor_rollout_ref": {"rollout": apart}}}))
    (workers,) = kuberay(render, conf)["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == 3 + 2 - 1 and workers["rayStartParams"]["num-gpus"] == "4"
    assert "#SBATCH --nodes=5\n" in render("slurm", "--conf", str(conf))[1]


def test_a_claim_takes_the_place_of_the_nodes_own_folder(project, render):
    (template, *_) = pods(kuberay(render, project / "My Run_1.yaml", "--claim", "data/agents/one"))
    assert {"name": "project", "persistentVolumeClaim": {"claimName": "data"}} in template["spec"]["volumes"]
    mount = {"name": "project", "mountPath": str(project), "subPath": "agents/one"}
    assert mount in template["spec"]["containers"][0]["volumeMounts"]


def test_secrets_are_named_and_never_written(project, render, monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", "s3cret")
    conf = write(project, logger=["console", "wandb"])
    conf.write_text(conf.read_text() + "judge: {key: '${oc.env:JUDGE_KEY}'}\n")
    code, text, _ = render("kuberay", "--conf", str(conf), "--image", "x")
    assert code == 0 and not any(value in text for value in ("hunter2", "x y", "s3cret"))
    names = ["HF_TOKEN", "JUDGE_KEY", "OTHER", "TOOL_PASSWORD", "WANDB_API_KEY"]
    for template in pods(yaml.safe_load(text)):
        assert [each["name"] for each in template["spec"]["containers"][0]["env"]] == names
        for each in template["spec"]["containers"][0]["env"]:
            assert each["valueFrom"]["secretKeyRef"] == {"name": "ajet-my-run-1", "key": each["name"], "optional": True}
    assert not any(value in render("slurm", "--conf", str(conf))[1] for value in ("hunter2", "x y", "s3cret"))


def test_the_batch_script_is_bash_and_asks_for_what_the_experiment_has(project, render, tmp_path):
    code, told, err = render("slurm", "--conf", str(project / "My Run_1.yaml"), "--out", str(tmp_path / "out/run.sh"))
    assert code == 0 and "sbatch" in told, err
    script = (tmp_path / "out/run.sh").read_text()
    done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    for line in ("#SBATCH --nodes=3", "#SBATCH --gpus-per-node=4", "#SBATCH --job-name=ajet-my-run-1"):
        assert line in script.splitlines()
    options = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert script.splitlines()[2 : 2 + len(options)] != [] and script.index(options[-1]) < script.index("set -euo")
    assert "--nodes=2 --ntasks=2 --exclude" in script and f"cd '{project}'" in script


@pytest.mark.parametrize(
    "device, asked, started",
    [("cpu", None, "--num-gpus=4 --num-cpus=16)"), ("npu", "#SBATCH --gres=npu:4", "--resources='{\"NPU\": 4}'")],
)
def test_other_devices_are_asked_for_by_their_own_names(project, render, device, asked, started):
    _, script, _ = render("slurm", "--conf", str(write(project, device=device, nnodes=1)))
    assert (asked in script) if asked else ("gres" not in script and "gpus-per-node" not in script)
    assert started in script and "--exclude" not in script


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["slurm"], "--conf is missing"),
        (["kuberay", "--conf", "my project/My Run_1.yaml"], "--image is missing"),
        (["slurm", "--conf", "my project/My Run_1.yaml", "--image", "x"], "are only for kuberay"),
        (["slurm", "--conf", "my project/My Run_1.yaml", "--folder", "my project/inner"], "is not in or below"),
        (["slurm", "--conf", "my project/My Run_1.yaml", "trainer_common.mini_batch_num=5"], "mini_batch_num"),
        (["slurm", "--conf", "my project/My Run_1.yaml", "+judge.api_key=abc"], "is a secret"),
    ],
    ids=str,
)
def test_what_a_run_would_refuse_is_refused_here(project, render, arguments, words):
    code, out, err = render(*arguments)
    assert code == 2 and words in err and out == "" and "abc" not in out + err
