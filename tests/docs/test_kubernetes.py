"""The RayJob in docs/how-to/ray.md: settings of purerl, resources that fit them, and fields that KubeRay knows."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml

from purerl.backends.vllm.generator import VERSION
from purerl.recipes import required_settings, resolve

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "ray.md").read_text(encoding="utf-8")
JOB: dict[str, Any] = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[1])  # pyright: ignore[reportOptionalSubscript]
IMAGE = re.search(r"```dockerfile\n(.*?)```", PAGE, re.DOTALL)[1]  # pyright: ignore[reportOptionalSubscript]
SPEC, CLUSTER = JOB["spec"], JOB["spec"]["rayClusterSpec"]
FIELDS = {
    "spec": {"entrypoint", "backoffLimit", "shutdownAfterJobFinishes", "rayClusterSpec"},
    "cluster": {"rayVersion", "headGroupSpec", "workerGroupSpecs"},
    "head": {"rayStartParams", "template"},
    "workers": {"groupName", "replicas", "minReplicas", "maxReplicas", "rayStartParams", "template"},
}
"""Of KubeRay's API ray.io/v1, those that a job needs."""


def pods() -> Iterator[tuple[int, dict[str, Any]]]:
    """The number of pods of each kind, and what they are."""
    yield 1, CLUSTER["headGroupSpec"]["template"]["spec"]
    for group in CLUSTER["workerGroupSpecs"]:
        yield group["replicas"], group["template"]["spec"]


def test_fields_are_those_of_kuberay() -> None:
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    assert SPEC.keys() == FIELDS["spec"]
    assert CLUSTER.keys() == FIELDS["cluster"]
    assert CLUSTER["headGroupSpec"].keys() == FIELDS["head"]
    assert all(isinstance(value, str) for value in CLUSTER["headGroupSpec"]["rayStartParams"].values())
    for group in CLUSTER["workerGroupSpecs"]:
        assert group.keys() == FIELDS["workers"]
        assert group["minReplicas"] == group["replicas"] == group["maxReplicas"], (
            "all pods are there when the run starts"
        )


def test_every_actor_has_a_gpu_and_cores() -> None:
    words = shlex.split(SPEC["entrypoint"])
    assert words[:2] == ["purerl", "train"]
    settings = [word for flag, word in pairwise(words) if flag == "--set"]
    config = resolve("gsm8k", [*required_settings("gsm8k"), *settings])
    trainers, generators = config.placement.trainers, config.placement.generators
    assert trainers is not None
    assert generators is not None
    limits = [(number, container["resources"]["limits"]) for number, pod in pods() for container in pod["containers"]]
    gpus = sum(number * each.get("nvidia.com/gpu", 0) for number, each in limits)
    assert gpus == trainers.count + generators.count, "without `gpus`, an actor has one"
    assert sum(number * each["cpu"] for number, each in limits) >= trainers.count + generators.count


def test_configuration_and_run_are_on_a_volume_of_all_pods() -> None:
    words = shlex.split(SPEC["entrypoint"])
    paths = [words[2], words[words.index("--directory") + 1]]
    for _, pod in pods():
        volumes = {volume["name"]: volume["persistentVolumeClaim"]["claimName"] for volume in pod["volumes"]}
        [container] = pod["containers"]
        [mount] = container["volumeMounts"]
        assert volumes[mount["name"]] == "shared"
        assert all(path.startswith(f"{mount['mountPath']}/") for path in paths)


def test_versions_are_those_that_are_tested() -> None:
    requirements = (ROOT / "tests" / "ray" / "requirements.txt").read_text(encoding="utf-8")
    assert f"ray=={CLUSTER['rayVersion']}\n" in requirements
    assert f"rayproject/ray:{CLUSTER['rayVersion']}-py311" in IMAGE
    assert f"vllm=={VERSION}." in IMAGE
    assert "generator.server.python=/opt/vllm/bin/python" in SPEC["entrypoint"]
    assert "python -m venv /opt/vllm" in IMAGE
