"""The manifests, as kustomize renders them: valid by the schemas, and as tight as the README says."""

import re

import jsonschema
import pytest
import yaml
from dask.utils import parse_bytes

from wegl_dask import errors
from wegl_dask.locks import DEAD_AFTER

kubernetes_validate = pytest.importorskip("kubernetes_validate")

OLDEST = "1.31"
"""The first version that takes a Job's podFailurePolicy for finished."""

SECRETS = {"wegl-tls", "wegl-s3"}
"""What the README has the user make."""


def memory(quantity):
    return parse_bytes(quantity if quantity.endswith("B") else f"{quantity}B")


def by_kind(objects, kind):
    return [thing for thing in objects if thing["kind"] == kind]


def containers(overlay):
    return [(component, container) for component, pod in overlay.pods.items() for container in pod.spec["containers"]]


# --- Schemas ---


@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_every_object_is_valid(overlay, version):
    known = [thing for thing in overlay.objects if thing["kind"] != "DaskJob"]
    assert len(known) >= 5
    for thing in known:
        kubernetes_validate.validate(thing, version, strict=True)


@pytest.mark.parametrize("name", ["namespace.yaml", "claim.yaml"])
def test_what_is_applied_once_is_valid(name, deploy):
    kubernetes_validate.validate(yaml.safe_load((deploy / "kubernetes" / name).read_text()), OLDEST, strict=True)


def test_the_schemas_find_what_is_wrong(render):
    [job] = by_kind(render("plain-pvc").objects, "Job")
    job = yaml.safe_load(yaml.safe_dump(job))
    job["spec"]["template"]["spec"]["containers"][0]["imagePullPolice"] = "Always"
    with pytest.raises(kubernetes_validate.ValidationError, match="imagePullPolice"):
        kubernetes_validate.validate(job, OLDEST, strict=True)


def closed(schema):
    """The same schema, in which a field that is not listed, and would be pruned without a word, is an error."""
    if isinstance(schema, list):
        return [closed(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: closed(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object":
        result.setdefault("additionalProperties", False)
    return result


@pytest.mark.parametrize("name", ["operator-s3", "operator-pvc"])
def test_a_dask_job_is_what_the_operator_defines_and_loses_nothing(render, daskjob_schema, name):
    [job] = by_kind(render(name).objects, "DaskJob")
    schema = closed(daskjob_schema)
    schema["properties"] |= {key: {} for key in ("apiVersion", "kind", "metadata")}
    jsonschema.Draft202012Validator(schema).validate(job)
    job = yaml.safe_load(yaml.safe_dump(job))
    job["spec"]["cluster"]["spec"]["worker"]["spec"]["hostUser"] = False
    with pytest.raises(jsonschema.ValidationError, match="hostUser"):
        jsonschema.Draft202012Validator(schema).validate(job)


@pytest.mark.parametrize("storage", ["s3", "pvc"])
def test_with_and_without_the_operator_the_same_containers_run(render, storage):
    plain, operator = render(f"plain-{storage}").pods, render(f"operator-{storage}").pods
    assert set(plain) == set(operator) == {"scheduler", "worker", "client"}
    for component, pod in plain.items():
        other = operator[component]
        assert pod.spec["containers"] == other.spec["containers"]
        assert pod.labels == other.labels
        assert pod.replicas == other.replicas
        differing = {key for key in {*pod.spec, *other.spec} if pod.spec.get(key) != other.spec.get(key)}
        assert differing == ({"restartPolicy"} if component == "client" else set())


def test_the_operator_finds_its_scheduler(render):
    objects = render("operator-s3").objects
    [job] = by_kind(objects, "DaskJob")
    service = job["spec"]["cluster"]["spec"]["scheduler"]["service"]
    # Labels that the operator gives the scheduler's pod, by its own name for the cluster.
    assert service["selector"] == {"dask.org/cluster-name": job["metadata"]["name"], "dask.org/component": "scheduler"}
    address = f"tls://{job['metadata']['name']}-scheduler:8786"
    pods = {component: pod.spec["containers"][0]["args"] for component, pod in render("operator-s3").pods.items()}
    assert address in pods["worker"]
    assert f"--scheduler={address}" in pods["client"]


# --- What the pods may do ---


def test_pods_run_as_somebody_who_may_do_nothing(overlay):
    for pod in overlay.pods.values():
        security = pod.spec["securityContext"]
        assert security["runAsNonRoot"]
        assert security["runAsUser"] == security["runAsGroup"] == security["fsGroup"] == 10001
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod.spec["automountServiceAccountToken"] is False
        assert pod.spec["serviceAccountName"] == "wegl"
    for _, container in containers(overlay):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    [account] = by_kind(overlay.objects, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False
    assert not {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"} & {t["kind"] for t in overlay.objects}


def test_memory_is_requested_in_full_and_dask_stops_before_it_is_used_up(overlay):
    for _, container in containers(overlay):
        resources = container["resources"]
        assert resources["requests"]["memory"] == resources["limits"]["memory"]
        assert resources["requests"]["ephemeral-storage"] == resources["limits"]["ephemeral-storage"]
    [worker] = overlay.pods["worker"].spec["containers"]
    [limit] = [part.partition("=")[2] for part in worker["args"] if part.startswith("--memory-limit=")]
    assert memory(limit) <= 0.9 * memory(worker["resources"]["limits"]["memory"])
    assert "--nthreads=1" in worker["args"]


def test_what_is_spilled_goes_where_it_can_be_written_and_fits(overlay):
    [worker] = overlay.pods["worker"].spec["containers"]
    [folder] = [part.partition("=")[2] for part in worker["args"] if part.startswith("--local-directory=")]
    [mount] = [mount for mount in worker["volumeMounts"] if mount["mountPath"] == folder]
    [volume] = [volume for volume in overlay.pods["worker"].spec["volumes"] if volume["name"] == mount["name"]]
    assert memory(volume["emptyDir"]["sizeLimit"]) <= memory(worker["resources"]["limits"]["ephemeral-storage"])


def test_servers_have_probes_on_ports_they_have(overlay):
    for component in ("scheduler", "worker"):
        [container] = overlay.pods[component].spec["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            port = ports[container[kind]["httpGet"]["port"]]
            assert any(
                part.startswith("--dashboard-address=") and part.endswith(f":{port}") for part in container["args"]
            )
    # Longer than the five minutes after which the scheduler gives a silent worker up.
    liveness = overlay.pods["worker"].spec["containers"][0]["livenessProbe"]
    assert liveness["periodSeconds"] * liveness["failureThreshold"] > 300


def test_everything_named_is_there_or_the_user_makes_it(overlay):
    maps = {thing["metadata"]["name"] for thing in by_kind(overlay.objects, "ConfigMap")}
    assert by_kind(overlay.objects, "Secret") == []
    claims = set()
    for pod in overlay.pods.values():
        [container] = pod.spec["containers"]
        volumes = {volume["name"]: volume for volume in pod.spec["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        for volume in volumes.values():
            if "configMap" in volume:
                assert volume["configMap"]["name"] in maps
            if "secret" in volume:
                assert volume["secret"]["secretName"] in SECRETS
            if "persistentVolumeClaim" in volume:
                claims.add(volume["persistentVolumeClaim"]["claimName"])
        for source in container["envFrom"]:
            assert source.get("secretRef", {}).get("name") in {None, *SECRETS}
            assert source.get("configMapRef", {}).get("name") in {None, *maps}
    assert claims == ({"wegl-data"} if overlay.name.endswith("pvc") else set())


def test_credentials_are_in_no_object(overlay):
    text = yaml.safe_dump_all(overlay.objects)
    assert not re.search(r"AWS_|PRIVATE KEY|password", text)
    in_environment = {
        component
        for component, container in containers(overlay)
        if {"secretRef": {"name": "wegl-s3"}} in container["envFrom"]
    }
    assert in_environment == ({"worker", "client"} if overlay.name.endswith("s3") else set())


# --- Who reaches what ---


def selects(selector, labels):
    return all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def test_pods_are_reached_by_one_another_alone_on_the_ports_they_listen_on(overlay):
    policies = {thing["metadata"]["name"]: thing["spec"] for thing in by_kind(overlay.objects, "NetworkPolicy")}
    policy = policies["wegl"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert all(selects(policy["podSelector"], pod.labels) for pod in overlay.pods.values())
    [rule] = policy["ingress"]
    assert rule["from"] == [{"podSelector": policy["podSelector"]}]
    listening = {
        port["containerPort"]
        for _, container in containers(overlay)
        for port in container.get("ports", [])
        if not port["name"].startswith("http")
    }
    assert {port["port"] for port in rule["ports"]} == listening == {8786, 8788, 8789}
    assert policy["egress"][0] == {"to": rule["from"], "ports": rule["ports"]}
    outside = {name: spec["egress"] for name, spec in policies.items() if name != "wegl"}
    store = {"wegl-object-store": [{"ports": [{"port": 443, "protocol": "TCP"}]}]}
    assert outside == (store if overlay.name.endswith("s3") else {})


def test_nodes_are_drained_worker_by_worker(overlay):
    budgets = {thing["metadata"]["name"]: thing["spec"] for thing in by_kind(overlay.objects, "PodDisruptionBudget")}
    assert budgets["wegl-worker"]["maxUnavailable"] == 1
    for component in ("worker", "scheduler"):
        chosen = [
            part for part, pod in overlay.pods.items() if selects(budgets[f"wegl-{component}"]["selector"], pod.labels)
        ]
        assert chosen == [component]


# --- When the job fails ---


def test_a_job_is_tried_again_for_longer_than_the_lock_of_a_dead_run_counts(render):
    [job] = by_kind(render("plain-s3").objects, "Job")
    # Kubernetes waits 10 s before the second try and twice as long before each next, up to six minutes.
    pauses = [min(10 * 2**i, 360) for i in range(job["spec"]["backoffLimit"])]
    assert sum(pauses[:4]) > 2 * DEAD_AFTER
    assert job["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert job["spec"]["ttlSecondsAfterFinished"] > 0


def test_what_would_fail_again_is_not_tried_again(render):
    [job] = by_kind(render("plain-s3").objects, "Job")
    eviction, final = job["spec"]["podFailurePolicy"]["rules"]
    assert eviction["action"] == "Ignore"
    assert final["action"] == "FailJob"
    assert final["onExitCodes"]["values"] == [errors.JobFileError.exit_code, errors.TooManyRejectedError.exit_code]
    assert final["onExitCodes"]["containerName"] == job["spec"]["template"]["spec"]["containers"][0]["name"]
    # SIGTERM and Ctrl-C, and whatever else may pass.
    assert not {0, 1, 130, 137, 143} & set(final["onExitCodes"]["values"])
