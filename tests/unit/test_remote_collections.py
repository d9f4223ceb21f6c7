"""Collections in an object store, with a server of the S3 API on this machine."""

import os
from contextlib import contextmanager

import boto3
import pytest
from lance.commit import CommitConflictError
from moto.server import ThreadedMotoServer
from PIL import Image
from s3fs import S3FileSystem
from typer.testing import CliRunner

import limner
from limner.apps.cli import app
from limner.data import collection_writer
from limner.data.collection import ITEMS, Collection, write_items
from limner.data.examples import Item, ItemSentence
from limner.data.items_table import Changes
from limner.data.readers import import_collection
from limner.data.summary import summarise
from limner.errors import CollectionError, SettingsError
from limner.features.encoders.load import load_backbone
from limner.features.extract import extract
from limner.storage.places import place

pytestmark = pytest.mark.filterwarnings("ignore")  # of the server and its clients
DOG = Item("dog", "train", sentences=(ItemSentence("en", "a dog"),))
CAT = Item("cat", "val", sentences=(ItemSentence("en", "a cat"),))


@pytest.fixture(scope="module")
def server():
    server = ThreadedMotoServer("127.0.0.1", port=0)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(server, monkeypatch, request, tmp_path_factory):
    for name, value in (("ACCESS_KEY_ID", "id"), ("SECRET_ACCESS_KEY", "key"), ("REGION", "us-east-1")):
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    config = tmp_path_factory.mktemp("aws") / "config"  # in place of the user's
    config.touch()
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    S3FileSystem.clear_instance_cache()
    name = f"bucket-{abs(hash(request.node.name))}"
    boto3.client("s3").create_bucket(Bucket=name)
    return name


def objects(bucket):
    return [one["Key"] for one in boto3.client("s3").list_objects_v2(Bucket=bucket).get("Contents", [])]


def test_items_are_added_and_read(bucket):
    path = f"s3://{bucket}/a/c"
    assert write_items(path, [DOG]) == Changes(1, 0, 0)
    assert write_items(path, [CAT, DOG]) == Changes(1, 0, 1)
    german = Item("dog", "train", sentences=(ItemSentence("de", "ein Hund"),))
    assert write_items(path, [german]) == Changes(0, 1, 0)
    collection = Collection.open(path)
    assert [(item.id, item.texts("de")) for item in collection.items()] == [("dog", ["ein Hund"]), ("cat", [])]
    assert summarise(collection).splits == {"train": 1, "val": 1}
    assert str(collection.path) == path == str(place(f"s3:/{bucket}/a/c"))


def test_images_are_copied_and_their_features_stored(bucket, tmp_path):
    for name, colour in (("red", "red"), ("blue", "blue")):
        Image.new("RGB", (20, 20), colour).save(tmp_path / f"{name}.png")
    path = f"s3://{bucket}/c"
    with pytest.raises(CollectionError, match=r"red\.png|blue\.png.*--copy"):
        import_collection("folder", tmp_path, path)
    import_collection("folder", tmp_path, path, copy=True)
    assert {"c/images/red.png", "c/images/blue.png"} <= set(objects(bucket))
    collection = Collection.open(path)
    assert (collection.features(), summarise(collection).missing) == ((), 0)
    extract(collection, load_backbone("pixels:4"))
    assert extract(collection, load_backbone("pixels:4")).present == 2
    assert Collection.open(path).features() == ("pixels4",)


def test_the_command_line_accepts_uris(bucket, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"id": "1", "split": "train", "image": null, "lang": "en", "text": "a dog"}')
    done = CliRunner().invoke(app, ["import", "jsonl", str(tmp_path / "a.jsonl"), f"s3://{bucket}/c", "--json"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(app, ["show", f"s3://{bucket}/c", "--json"])
    assert done.exit_code == 0, done.output
    assert '"items": 1' in done.output


@contextmanager
def refused(*parts):
    """An error in one line that has the given parts."""
    with pytest.raises(CollectionError) as error:
        yield
    message = str(error.value)
    assert "\n" not in message
    assert all(part in message for part in parts), message


@pytest.fixture
def write_meanwhile(monkeypatch):
    """Lets another process write items before the next rows are written; the conflicts are in the returned list."""

    def prepare(path, *items, writer="append_rows"):
        write, conflicts = getattr(collection_writer, writer), []

        def late(table, batches, splits):
            monkeypatch.setattr(collection_writer, writer, write)
            write_items(path, items)
            try:
                write(table, batches, splits)
            except CommitConflictError as error:
                conflicts.append(error)
                raise

        monkeypatch.setattr(collection_writer, writer, late)
        return conflicts

    return prepare


def test_lost_credentials_are_one_line_of_error(bucket, monkeypatch, tmp_path):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    opened = Collection.open(path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    S3FileSystem.clear_instance_cache()
    with refused(path, "there are no valid credentials", "AWS_ACCESS_KEY_ID"):
        Collection.open(path)
    with refused(path, "there are no valid credentials", "repeat the command"):
        write_items(path, [CAT])
    monkeypatch.undo()
    assert len(opened) == 1


def test_a_bucket_that_disappears_is_one_line_of_error(bucket):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    opened = Collection.open(path)
    client = boto3.client("s3")
    for key in objects(bucket):
        client.delete_object(Bucket=bucket, Key=key)
    client.delete_bucket(Bucket=bucket)
    with pytest.raises(CollectionError, match="does not exist"):
        Collection.open(path)
    with refused(path):
        opened.items()
    with refused(path, "the bucket does not exist"):
        write_items(path, [CAT])


def test_a_server_that_is_gone_is_one_line_of_error(bucket, monkeypatch):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    S3FileSystem.clear_instance_cache()
    with refused(path, "no answer", "AWS_ENDPOINT_URL"):
        Collection.open(path)


def test_two_writers_lose_nothing(bucket, write_meanwhile):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    write_meanwhile(path, Item("other", "train"))
    assert write_items(path, [CAT]) == Changes(1, 0, 0)
    collection = Collection.open(path)
    assert [item.id for item in collection.items()] == ["dog", "other", "cat"]
    assert collection.splits() == {"train": 2, "val": 1}


def test_two_writers_of_one_id_conflict_and_are_merged(bucket, write_meanwhile):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    conflicts = write_meanwhile(path, Item("cat", "val", sentences=(ItemSentence("de", "eine Katze"),)))
    assert write_items(path, [CAT]) == Changes(0, 1, 0)
    assert len(conflicts) == 1
    items = {item.id: item for item in Collection.open(path).items()}
    assert [*items] == ["dog", "cat"]
    assert (items["cat"].texts("en"), items["cat"].texts("de")) == (["a cat"], ["eine Katze"])


def test_two_writers_of_one_id_that_contradict_each_other_lose_nothing(bucket, write_meanwhile):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    write_meanwhile(path, Item("cat", "train"))
    with refused("'cat'", "'train'", "'val'"):
        write_items(path, [CAT])
    assert [(item.id, item.split) for item in Collection.open(path).items()] == [("dog", "train"), ("cat", "train")]


def test_a_file_that_differs_from_a_stored_one_of_the_same_size_is_refused(bucket, tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"0" * 100_000 + name.encode())
    path = f"s3://{bucket}/c"
    for _ in range(2):
        write_items(path, [DOG], files={"files/one": tmp_path / "a"})
    assert place(f"{path}/files/one").read_bytes() == (tmp_path / "a").read_bytes()
    with pytest.raises(CollectionError, match="files/one: exists and differs"):
        write_items(path, [DOG], files={"files/one": tmp_path / "b"})


def test_two_writers_that_create_a_collection_lose_nothing(bucket, write_meanwhile):
    path = f"s3://{bucket}/c"
    write_meanwhile(path, DOG, writer="create_table")
    write_items(path, [CAT])
    assert [item.id for item in Collection.open(path).items()] == ["dog", "cat"]


def test_a_writer_that_never_wins_names_both(bucket, monkeypatch):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    append, numbers = collection_writer.append_rows, iter(range(100))

    def late(table, batches, splits):
        monkeypatch.setattr(collection_writer, "append_rows", append)
        write_items(path, [Item(f"other{next(numbers)}", "train")])
        monkeypatch.setattr(collection_writer, "append_rows", late)
        append(table, batches, splits)

    monkeypatch.setattr(collection_writer, "append_rows", late)
    with refused(path, "could not add its items", f"process {os.getpid()} on ", "wrote version 6"):
        write_items(path, [CAT])
    assert len(Collection.open(path)) == 1 + collection_writer.ATTEMPTS


def test_a_corrupt_fragment_is_damage_of_that_table(bucket):
    path = f"s3://{bucket}/c"
    write_items(path, [DOG])
    (key,) = [key for key in objects(bucket) if "/data/" in key]
    body = boto3.client("s3").get_object(Bucket=bucket, Key=key)["Body"].read()
    boto3.client("s3").put_object(Bucket=bucket, Key=key, Body=b"\0" * len(body))
    with refused(f"{path}/{ITEMS}", "damaged"):
        Collection.open(path).items()


def test_the_index_of_a_collection_is_in_a_folder(bucket, tiny, trained, tmp_path):
    stored = place(f"s3://{bucket}/c")
    for file in tiny.path.rglob("*"):
        if file.is_file():
            (stored / file.relative_to(tiny.path).as_posix()).write_bytes(file.read_bytes())
    collection, retriever = Collection.open(f"s3://{bucket}/c"), limner.Retriever.load(trained, encode_images=False)
    with pytest.raises(SettingsError, match=rf"s3://{bucket}/c/indexes/run/all: .*name a folder with --index"):
        retriever.build_index(collection)
    assert not any("/indexes/" in key for key in objects(bucket))
    expected = retriever.search_images("a red wall", tiny, count=5).results
    assert retriever.build_index(collection, path=tmp_path / "index").images == len(tiny)
    found = retriever.search_images("a red wall", collection, count=5, index=tmp_path / "index")
    assert found.kind is not None
    assert [one.id for one in found.results] == [one.id for one in expected]
    command = ["index", f"s3://{bucket}/c", "--model", str(trained), "--index", str(tmp_path / "index")]
    done = CliRunner().invoke(app, command)
    assert (done.exit_code, "is up to date" in done.output) == (0, True), done.output


def test_unknown_stores_are_refused():
    with pytest.raises(SettingsError, match=r"ftp://host/c: expected a folder or a URI of s3, gs, az, found 'ftp'"):
        Collection.open("ftp://host/c")
