"""Work on a Ray cluster of several nodes gives what one process gives, and survives the loss of a node."""

import numpy as np
import pytest
from ray_cluster import LocalCluster, photographs

from limner.distributed.features import ExtractionOptions, extract_distributed
from limner.features.backbone_choice import BackboneChoice
from limner.features.extract import extract
from limner.features.store import FeatureTable

pytest.importorskip("ray", reason="Ray is not installed: pip install 'limner[scale]'")
pytestmark = [pytest.mark.xdist_group("ray"), pytest.mark.filterwarnings("ignore")]

COUNT, UNIT_ROWS = 120, 4
OPTIONS = ExtractionOptions(name="ray", batch_size=4, unit_rows=UNIT_ROWS)
PIXELS = BackboneChoice("pixels:8")


@pytest.fixture(scope="module")
def cluster():
    cluster = LocalCluster()
    yield cluster
    cluster.cluster.shutdown()


@pytest.fixture
def collection(tmp_path):
    return photographs(tmp_path / "collection", COUNT)


def assert_equal(one: FeatureTable, two: FeatureTable) -> None:
    assert one.ids() == two.ids()
    np.testing.assert_array_equal(one.take(one.ids()).view(np.uint16), two.take(one.ids()).view(np.uint16))
    assert len(set(two.ids())) == len(two.ids())


def test_a_killed_node_loses_nothing_and_repeats_nothing(cluster, collection):
    whole = extract(collection, PIXELS.load(collection), name="whole", batch_size=4)
    survive_kill(cluster, collection, whole, after=3)


@pytest.mark.slow
@pytest.mark.parametrize("after", range(1, 11))
def test_ten_points_of_killing_a_node(cluster, collection, after):
    whole = extract(collection, PIXELS.load(collection), name="whole", batch_size=4)
    survive_kill(cluster, collection, whole, after=after)


def survive_kill(cluster, collection, whole, after):
    killed = []

    def kill(done, total):
        if done >= after * UNIT_ROWS and not killed:
            killed.append(len(list(collection.path.glob(".features-ray.units/[0-9]*.json"))))
            cluster.kill_node()

    try:
        found = extract_distributed(collection, PIXELS, cluster.address, OPTIONS, on_progress=kill)
    finally:
        cluster.replace_nodes()
    assert killed[0] < COUNT // UNIT_ROWS  # units were not finished
    assert_equal(whole.tables[0], found.tables[0])
    assert found.skipped == whole.skipped
    assert found.added == whole.added == COUNT - 1
    data = {file.name for file in (found.tables[0].path / "data").iterdir()}
    assert data == set(found.tables[0].data_files())  # no file of a unit that was lost
    assert not list(collection.path.glob(".features-*"))
