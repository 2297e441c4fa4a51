"""Kubernetes without a cluster: manifests as kustomize renders them, and their pods as processes of this machine.

A pod's container becomes a process in a root file system of its own, which is read-only but for the pod's volumes, under
the user that the manifest names. All pods are in one network namespace, which reaches nothing else.
"""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
OVERLAYS = ("plain-s3", "plain-pvc", "operator-s3", "operator-pvc")
TOOLS = "WEGL_KUBERNETES_TOOLS"
"""Environment variable that names the folder which .ci/kubernetes-tools has filled."""

CRD = "dask_kubernetes/operator/deployment/helm/dask-kubernetes-operator/crds/daskjob.yaml"


def tool(name):
    """Find a file of the tools; the test is skipped where there is none."""
    folder = os.environ.get(TOOLS)
    if folder is None:
        pytest.skip(f"{TOOLS} is not set: run  .ci/kubernetes-tools FOLDER  and set it to FOLDER")
    return Path(folder) / name


@pytest.fixture(scope="session")
def deploy():
    """The folder deploy/ of the repository."""
    return DEPLOY


@pytest.fixture(scope="session")
def daskjob_schema():
    """The schema of a DaskJob, as the operator's package has it."""
    definition = yaml.safe_load(tool(CRD).read_text())
    [version] = [version for version in definition["spec"]["versions"] if version["storage"]]
    return version["schema"]["openAPIV3Schema"]


@pytest.fixture(scope="session")
def kustomize():
    """Render a folder by ``kubectl kustomize``: its objects."""

    @functools.cache
    def kustomize(folder):
        kubectl = shutil.which("kubectl") if os.environ.get(TOOLS) is None else tool("kubectl")
        if kubectl is None:
            tool("kubectl")
        done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return list(yaml.safe_load_all(done.stdout))

    return kustomize


@pytest.fixture(params=OVERLAYS)
def overlay(request, kustomize):
    """Each overlay in turn: its `name`, its `objects`, and what its `pods` are made of, by component."""
    objects = kustomize(DEPLOY / "kubernetes" / "overlays" / request.param)
    return SimpleNamespace(name=request.param, objects=objects, pods=pod_templates(objects))


@pytest.fixture
def render(kustomize):
    """One overlay by name; see `overlay`."""

    def render(name):
        objects = kustomize(DEPLOY / "kubernetes" / "overlays" / name)
        return SimpleNamespace(name=name, objects=objects, pods=pod_templates(objects))

    return render


def pod_templates(objects):
    """Labels, spec and number of the pods, by component; of a DaskJob, what the operator makes of it."""
    pods = {}
    for thing in objects:
        labels = thing["metadata"].get("labels", {})
        if thing["kind"] in {"Deployment", "Job"}:
            template = thing["spec"]["template"]
            found = template["metadata"]["labels"], template["spec"], thing["spec"].get("replicas", 1)
            pods[labels["app.kubernetes.io/component"]] = SimpleNamespace(
                **dict(zip(("labels", "spec", "replicas"), found, strict=True))
            )
        if thing["kind"] == "DaskJob":
            for part in (thing["spec"]["job"], *thing["spec"]["cluster"]["spec"].values()):
                own = labels | part["metadata"]["labels"]
                pods[own["app.kubernetes.io/component"]] = SimpleNamespace(
                    labels=own, spec=part["spec"], replicas=part.get("replicas", 1)
                )
    return pods


def image_environment():
    """What the Dockerfile's ENV instructions of the last stage set."""
    stage = (DEPLOY / "Dockerfile").read_text().replace("\\\n", " ").rpartition("\nFROM ")[2]
    lines = [line.removeprefix("ENV ").split() for line in stage.splitlines() if line.startswith("ENV ")]
    return dict(pair.split("=", 1) for line in lines for pair in line)


# --- Pods as processes ---


@pytest.fixture
def cluster(tmp_path):
    """An empty cluster, in which `Cluster.start` starts pods; they end with the test."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a root file system and be another user in it")
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    if subprocess.run(probe, capture_output=True, check=False).returncode != 0:
        pytest.skip("this sandbox does not allow namespaces")
    with Cluster(tmp_path) as cluster:
        yield cluster


SCRIPT = """
set -e
cd "$1"; shift
mount --bind . .
cd "$PWD"
mount --rbind -o ro /usr usr
mount --rbind /dev dev
mount -t proc proc proc
while [ "$1" != -- ]; do mount --bind "$2" "./$1"; mount -o "remount,bind,$3" "./$1"; shift 3; done
shift
user=$1; shift
mount -o remount,bind,ro .
exec chroot --userspec="$user" . /usr/bin/env -i "$@"
"""


class Cluster(ExitStack):
    """A network namespace, the Secrets, ConfigMaps and claims in it, and its pods.

    Attributes
    ----------
    secrets, config_maps : dict of str to dict
        Their data, by name.
    claims : dict of str to Path
        Folders, by the name of the claim.
    hosts : dict of str to str
        Addresses, by name.
    """

    def __init__(self, folder):
        super().__init__()
        self.folder = folder
        self.secrets, self.config_maps, self.claims = {}, {}, {}
        self.hosts = {"localhost": "127.0.0.1"}
        self.started = 0

    def __enter__(self):
        pause = subprocess.Popen(
            ["unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity"],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.callback(end, pause)
        assert pause.stdout.readline() == "up\n"
        self.inside = ["nsenter", f"--net=/proc/{pause.pid}/ns/net"]
        return self

    def apply(self, objects):
        """Take in the objects that are not pods; a Service gets an address, at which its pod will be."""
        for thing in objects:
            name = thing["metadata"]["name"]
            match thing["kind"]:
                case "ConfigMap":
                    self.config_maps[name] = thing["data"]
                case "Service":
                    self.hosts[name] = f"127.0.1.{len(self.hosts)}"
                case "DaskJob":
                    self.hosts[f"{name}-scheduler"] = f"127.0.1.{len(self.hosts)}"

    def start(self, pod, name, address=None, command=None):
        """Start the container of a pod, or another command in it: the process."""
        self.started += 1
        root = self.folder / f"pod-{self.started}"
        address = address or f"127.0.2.{self.started}"
        [container] = pod.spec["containers"]
        facts = {"metadata.name": name, "status.podIP": address}
        environment = image_environment() | self._environment(container, facts)
        mounts = self._root_folder(root) + self._volumes(pod.spec, container, root.with_suffix(".volumes"))
        for _, inside, _ in mounts:
            (root / inside).mkdir(parents=True, exist_ok=True)
        security = pod.spec["securityContext"]
        arguments = command or [
            functools.reduce(lambda text, key: text.replace(f"$({key})", environment[key]), environment, argument)
            for argument in (*container["command"], *container["args"])
        ]
        process = subprocess.Popen(
            [
                *(*self.inside, "unshare", "--mount", "--pid", "--fork", "sh", "-c", SCRIPT, "sh", root),
                *(part for source, inside, option in mounts for part in (inside, source, option)),
                *("--", f"{security['runAsUser']}:{security['runAsGroup']}"),
                *(f"{key}={value}" for key, value in (environment | {"PYTHONPATH": "/source"}).items()),
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.callback(end, process)
        return SimpleNamespace(process=process, address=address, kill=functools.partial(end, process))

    def probe(self, container, address, kind):
        """Ask what the kubelet would ask: the status of the answer."""
        probe = container[kind]["httpGet"]
        port = next(port["containerPort"] for port in container["ports"] if port["name"] == probe["port"])
        ask = "import sys, urllib.request as r; print(r.urlopen(sys.argv[1], timeout=30).status)"
        url = f"http://{address}:{port}{probe['path']}"
        done = subprocess.run(
            [*self.inside, sys.executable, "-c", ask, url], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or done.stderr

    def _environment(self, container, facts):
        environment = {}
        for source in container.get("envFrom", []):
            if "secretRef" in source:
                environment |= self.secrets[source["secretRef"]["name"]]
            else:
                environment |= self.config_maps[source["configMapRef"]["name"]]
        for variable in container.get("env", []):
            value = variable.get("value")
            environment[variable["name"]] = (
                facts[variable["valueFrom"]["fieldRef"]["fieldPath"]] if value is None else value
            )
        return environment

    def _root_folder(self, root):
        """Lay out the image: this Python with its packages, the package itself, and the two commands."""
        for name in ("usr", "dev", "proc", "etc", "opt/wegl/bin"):
            (root / name).mkdir(parents=True)
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                (root / name).symlink_to(Path("/", name).readlink())
        hosts = "".join(f"{address} {name}\n" for name, address in self.hosts.items())
        (root / "etc" / "hosts").write_text(hosts)
        if Path("/etc/ld.so.cache").exists():
            shutil.copy("/etc/ld.so.cache", root / "etc")
        for command, module in (("dask", "dask"), ("wegl-dask", "wegl_dask")):
            script = root / "opt/wegl/bin" / command
            script.write_text(f'#!/bin/sh\nexec {sys.executable} -m {module} "$@"\n')
            script.chmod(0o755)
        prefixes = {Path(sys.prefix), Path(sys.base_prefix)}
        own = [prefix for prefix in prefixes if not prefix.is_relative_to("/usr")]
        packages = [(ROOT / name, f"source/{name}", "ro") for name in ("wegl_dask", "jobs")]
        return [(prefix, str(prefix.relative_to("/")), "ro") for prefix in own] + packages

    def _volumes(self, spec, container, folder):
        """Fill the pod's volumes, with the rights that the kubelet gives them: what to mount where."""
        group = spec["securityContext"]["fsGroup"]
        places = {}
        for volume in spec["volumes"]:
            match volume:
                case {"persistentVolumeClaim": {"claimName": claim}}:
                    place, files, mode = self.claims[claim], {}, None
                case {"secret": {"secretName": name, "defaultMode": mode}}:
                    place, files = folder / volume["name"], self.secrets[name]
                case {"configMap": {"name": name}}:
                    place, files, mode = folder / volume["name"], self.config_maps[name], 0o644
                case {"emptyDir": _}:
                    place, files, mode = folder / volume["name"], {}, None
            place.mkdir(parents=True, exist_ok=True)
            os.chown(place, 0, group)
            place.chmod(0o2775)
            for name, content in files.items():
                (place / name).write_text(content)
                os.chown(place / name, 0, group)
                (place / name).chmod(mode)
            places[volume["name"]] = place
        return [
            (places[mount["name"]], mount["mountPath"].lstrip("/"), "ro" if mount.get("readOnly") else "rw")
            for mount in container["volumeMounts"]
        ]


def end(process):
    """Kill a process and its children. With the first process of a pod, all in it die."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for child in children.read_text().split():
            os.kill(int(child), signal.SIGKILL)
    process.kill()
    process.communicate(timeout=60)


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """The data of the Secret wegl-tls, by the script that the README names."""
    folder = tmp_path_factory.mktemp("certificates") / "tls"
    subprocess.run([DEPLOY / "make-certificates", folder], check=True)
    return {name: (folder / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}
