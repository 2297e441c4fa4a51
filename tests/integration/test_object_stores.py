"""Jobs from an object store to an object store, over HTTP, with credentials from the environment alone."""

import gzip
import io
import os
import signal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wegl_dask.locks import LOCK_NAME

EMBEDDED = "out/records/embed-"

REFERENCE = {"kind": "sample"}
"""It reads the samples as k-means does, for which new workers import some seconds' worth."""

KEY, SECRET = "AKIAWEGLHUNTER", "hunter2-and-slashes/+hunter2"


@pytest.fixture
def bucket(s3_options, tmp_path):
    """A bucket that keeps every version of every object: `url`, `client`, and the `environment` to use it."""
    boto3 = pytest.importorskip("boto3")
    environment = {
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL_S3": s3_options["endpoint_url"],
    }
    client = boto3.client(
        "s3",
        endpoint_url=s3_options["endpoint_url"],
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )
    name = tmp_path.name.replace("_", "-")
    client.create_bucket(Bucket=name)
    client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
    return Bucket(client, name, environment)


class Bucket:
    def __init__(self, client, name, environment):
        self.client, self.name, self.environment = client, name, environment
        self.url = f"s3://{name}"

    def put(self, key, content):
        self.client.put_object(Bucket=self.name, Key=key, Body=content)

    def read(self, key):
        return self.client.get_object(Bucket=self.name, Key=key)["Body"].read()

    def keys(self, prefix=""):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(entry["Key"] for page in pages for entry in page.get("Contents", []))

    def puts(self, prefix=""):
        """How often each object was put, those that are deleted by now too."""
        counts = {}
        for page in self.client.get_paginator("list_object_versions").paginate(Bucket=self.name, Prefix=prefix):
            for entry in page.get("Versions", []):
                counts[entry["Key"]] = counts.get(entry["Key"], 0) + 1
        return counts

    def table(self, prefix):
        return pa.concat_tables([pq.read_table(io.BytesIO(self.read(key))) for key in self.keys(prefix)])


@pytest.fixture
def stored_job(bucket, molecules, molecules_job, job_file):
    """The molecules in two files of the bucket, one compressed, and a job from there to there."""
    head, *rows = molecules.read_text().splitlines(keepends=True)
    bucket.put("in/a.csv", head + "".join(rows[:200]))
    bucket.put("in/b.csv.gz", gzip.compress((head + "".join(rows[200:])).encode()))
    tables = {"cluster": {"workers": 2, "memory_limit": "1GB"}, "reference": REFERENCE}
    source = {"path": f"{bucket.url}/in/*"}
    return job_file(molecules_job(source=source, output={"path": f"{bucket.url}/out"}, **tables))


def test_a_job_reads_from_a_bucket_and_writes_to_it(bucket, stored_job, command, run, molecules_job, table, tmp_path):
    done = command("run", stored_job, shared=False, environment=bucket.environment)
    assert done.code == 0, done.err
    run(molecules_job("local", reference=REFERENCE))
    found, expected = bucket.table("out/data/"), table(tmp_path / "local")
    assert found["graph_id"].to_pylist() == expected["graph_id"].to_pylist()
    assert found["embedding"].to_pylist() == expected["embedding"].to_pylist()
    assert set(found["source_file"].to_pylist()) == {f"{bucket.url}/in/a.csv", f"{bucket.url}/in/b.csv.gz"}
    # The store's client is not heard on how it found its credentials.
    stages = {"scan", "ingest", "moments", "merge", "projection", "sample", "reference", "embed"}
    assert {line.partition(":")[0] for line in done.err.splitlines()} == stages
    # A part is one put, under its own name: nothing is copied or renamed.
    puts = bucket.puts("out/")
    assert {key: count for key, count in puts.items() if count > 1 and not key.endswith(LOCK_NAME)} == {}
    assert not [key for key in puts if "/.tmp-" in key and not key.rpartition("/")[2].startswith(".tmp-clock-")]
    # The credentials are nowhere: not in what is said, nor in what is written.
    written = b"".join(bucket.read(key) for key in bucket.keys("out/"))
    for secret in (KEY, SECRET):
        assert secret not in done.out + done.err
        assert secret.encode() not in written
    assert "aws" not in bucket.read("out/job.toml").decode().lower()


@pytest.mark.parametrize("name", ["check", "run"])
def test_a_bucket_that_is_not_there_is_refused_before_anything_is_started(
    name, bucket, molecules_job, job_file, command
):
    job = job_file(molecules_job(output={"path": "s3://no-such-bucket-anywhere/out"}))
    failed = command(name, job, shared=False, environment=bucket.environment)
    said = "there is no such bucket. Check the path, or make the bucket"
    assert (failed.code, failed.err) == (1, f"wegl-dask: cannot list s3://no-such-bucket-anywhere/out: {said}\n")


def test_an_error_of_the_store_does_not_show_the_credentials(bucket, stored_job, command):
    for broken in ({"AWS_ENDPOINT_URL_S3": "http://127.0.0.1:9"}, {"AWS_SECRET_ACCESS_KEY": ""}):
        failed = command(
            *("--debug", "check", stored_job, "--set", "output.path=s3://no-such-bucket-anywhere/out"),
            shared=False,
            environment=bucket.environment | broken | {"AWS_MAX_ATTEMPTS": "1"},
        )
        assert failed.code == 1
        assert "s3://" in failed.err
        assert KEY not in failed.out + failed.err
        assert SECRET not in failed.out + failed.err


@pytest.mark.slow
def test_a_job_killed_while_it_writes_to_a_bucket_goes_on(
    bucket, stored_job, command, run, molecules_job, table, tmp_path
):
    with command.start(
        "run", stored_job, shared=False, environment=bucket.environment, start_new_session=True
    ) as killed:
        for line in iter(killed.stderr.readline, ""):
            if line.startswith("reference:"):
                break
        while not bucket.keys(EMBEDDED):
            assert killed.poll() is None
        os.killpg(killed.pid, signal.SIGKILL)
    finished = [key.replace("records/embed-", "data/part-").replace("json", "parquet") for key in bucket.keys(EMBEDDED)]
    again = command("run", stored_job, shared=False, environment=bucket.environment)
    # The lock of a run that was killed counts for a minute, since nothing but its age tells that it is dead.
    assert again.code == 1
    assert "another run is writing in" in again.err
    assert "its lock counts for nothing 60 s after that" in again.err
    bucket.client.delete_object(Bucket=bucket.name, Key=f"out/{LOCK_NAME}")
    again = command("run", stored_job, shared=False, environment=bucket.environment)
    assert again.code == 0, again.err
    puts = bucket.puts("out/data/")
    assert {key: puts[key] for key in finished} == dict.fromkeys(finished, 1)
    run(molecules_job("local", reference=REFERENCE))
    assert bucket.table("out/data/")["embedding"].to_pylist() == table(tmp_path / "local")["embedding"].to_pylist()
