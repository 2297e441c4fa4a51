"""What the manifests start, started: scheduler, two workers and client as processes, and the job must finish."""

import subprocess
import sys

import pytest

RUN = "runs/quickstart"
STORE = {
    "AWS_ACCESS_KEY_ID": "AKIAWEGLTEST",
    "AWS_SECRET_ACCESS_KEY": "wegl-hunter2-wegl",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:5000",
}

SERVER = """
import os, signal, boto3
from moto.server import ThreadedMotoServer
ThreadedMotoServer("127.0.0.1", 5000, verbose=False).start()
boto3.client("s3", endpoint_url=os.environ["AWS_ENDPOINT_URL_S3"]).create_bucket(Bucket="my-bucket")
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def applied(cluster, render, certificates, tmp_path):
    """Apply an overlay, with the Secrets and the storage that it asks for."""

    def apply(name):
        overlay = render(name)
        cluster.secrets = {"wegl-tls": certificates, "wegl-s3": STORE}
        cluster.claims = {"wegl-data": tmp_path / "claim"}
        cluster.apply(overlay.objects)
        return overlay.pods

    return apply


def start_servers(cluster, pods):
    """Start the scheduler and as many workers as the manifest says."""
    scheduler = cluster.start(pods["scheduler"], "wegl-scheduler-0", cluster.hosts["wegl-scheduler"])
    workers = [cluster.start(pods["worker"], f"wegl-worker-{i}") for i in range(pods["worker"].replicas)]
    assert len(workers) == 2
    return scheduler, workers


def finish(pod):
    output, _ = pod.process.communicate(timeout=170)
    assert pod.process.returncode == 0, output
    return output


@pytest.mark.slow
def test_a_job_on_a_volume_is_killed_and_goes_on(cluster, applied, tmp_path):
    pods = applied("plain-pvc")
    scheduler, workers = start_servers(cluster, pods)
    client = cluster.start(pods["client"], "wegl-client-0")
    assert any(line.startswith("ingest: ") for line in iter(client.process.stdout.readline, ""))
    client.kill()
    said = finish(cluster.start(pods["client"], "wegl-client-1"))
    assert "quickstart: 4,991 graphs embedded, 8 rows rejected" in said
    run = tmp_path / "claim" / RUN
    assert (run / "_SUCCESS").exists()
    assert {path.stat().st_uid for path in run.rglob("*")} == {10001}
    assert 'address = "tls://wegl-scheduler:8786"' in (run / "job.toml").read_text()
    finish(cluster.start(pods["client"], "verify", command=["wegl-dask", "verify", f"/data/{RUN}"]))
    for component, pod in (("scheduler", scheduler), ("worker", workers[0]), ("worker", workers[1])):
        [container] = pods[component].spec["containers"]
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert cluster.probe(container, pod.address, kind) == "200"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["plain-s3", "operator-s3"])
def test_a_job_on_an_object_store_finishes(cluster, applied, name):
    pods = applied(name)
    store = subprocess.Popen(
        [*cluster.inside, sys.executable, "-c", SERVER], env=STORE, stdout=subprocess.PIPE, text=True
    )
    cluster.callback(store.communicate)
    cluster.callback(store.kill)
    assert store.stdout.readline() == "ready\n"
    start_servers(cluster, pods)
    said = finish(cluster.start(pods["client"], "wegl-client-0"))
    assert "quickstart: 4,991 graphs embedded, 8 rows rejected" in said
    finish(cluster.start(pods["client"], "verify", command=["wegl-dask", "verify", f"s3://my-bucket/{RUN}"]))
