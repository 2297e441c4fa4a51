"""What compose.yaml starts, started: scheduler, a worker and the job as processes, and the job must finish."""

import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import yaml

MODE = 0o440


def settings(path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split("=", 1) for line in lines)


@pytest.fixture
def services(deploy, cluster, certificates, tmp_path):
    """The services, as pods of `cluster`."""
    compose = yaml.safe_load((deploy / "compose.yaml").read_text())
    job = (deploy.parent / "jobs" / "quickstart.toml").read_text()
    cluster.secrets = {"tls": certificates}
    cluster.config_maps = {"job": {"job.toml": job}}
    cluster.claims = {"data": tmp_path / "data"}
    # How each of the volumes that the file names is mounted.
    known = {
        "./tls:/tls:ro": ({"secret": {"secretName": "tls", "defaultMode": MODE}}, "/tls"),
        "data:/data": ({"persistentVolumeClaim": {"claimName": "data"}}, "/data"),
        "../jobs/quickstart.toml:/job/job.toml:ro": ({"configMap": {"name": "job"}}, "/job"),
        "/scratch": ({"emptyDir": {}}, "/scratch"),
    }

    def pod(service):
        name = f"settings of {service['command'][1]}"
        cluster.config_maps[name] = {}
        for path in service["env_file"]:
            cluster.config_maps[name] |= settings(deploy / path)
        cluster.config_maps[name] |= service.get("environment", {})
        mounts = [known[volume] for volume in service["volumes"]]
        container = {
            "command": service["command"],
            "args": [],
            "envFrom": [{"configMapRef": {"name": name}}],
            "volumeMounts": [{"name": path, "mountPath": path} for _, path in mounts],
        }
        security = {"runAsUser": 10001, "runAsGroup": 10001, "fsGroup": 10001}
        volumes = [{"name": path, **volume} for volume, path in mounts]
        return SimpleNamespace(spec={"containers": [container], "volumes": volumes, "securityContext": security})

    return {name: pod(service) for name, service in compose["services"].items()}


@pytest.mark.slow
def test_the_job_of_the_compose_file_finishes_and_its_servers_are_healthy(services, cluster, deploy, tmp_path):
    cluster.hosts["scheduler"] = "127.0.1.1"
    cluster.start(services["scheduler"], "scheduler")
    # One: all are in one network here, and the ports are the same in each worker.
    cluster.start(services["worker"], "worker")
    job = cluster.start(services["job"], "job")
    said, _ = job.process.communicate(timeout=170)
    assert job.process.returncode == 0, said
    assert (tmp_path / "data" / "quickstart" / "_SUCCESS").exists()
    [check] = re.findall(r"^HEALTHCHECK (?:.|\\\n)*?CMD (\[.*\])$", (deploy / "Dockerfile").read_text(), re.MULTILINE)
    _, *arguments = json.loads(check)
    addresses = ["http://127.0.0.1:8787/health", "http://127.0.0.1:8790/health"]
    assert f"WEGL_HEALTH={addresses[0]}" in (deploy / "Dockerfile").read_text()
    assert addresses[1] in (deploy / "compose.yaml").read_text()
    for address in addresses:
        subprocess.run(
            [*cluster.inside, sys.executable, *arguments], env=os.environ | {"WEGL_HEALTH": address}, check=True
        )
