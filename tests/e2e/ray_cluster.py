"""A Ray cluster of several nodes on this machine, and a collection to compute on it."""

import os
import sys
from pathlib import Path

import numpy as np
from PIL import Image

from limner.data.collection import Collection, write_items
from limner.data.examples import Item

WORKERS = 2
DAMAGED = 13
STORE_BYTES = 80 << 20
# A killed node refuses connections and is lost after seconds; one that answers late, on a busy machine, is not.
HEALTH = {"health_check_period_ms": 500, "health_check_failure_threshold": 3}


def again(start, attempts=4):
    """Start a node: Ray waits half a minute for it, which a busy machine may need."""
    for _ in range(attempts - 1):
        try:
            return start()
        except Exception as error:
            if "timed out during startup" not in str(error):
                raise
    return start()


class LocalCluster:
    """A head without processor cores, and worker nodes with one core each that can be killed."""

    def __init__(self) -> None:
        os.environ.update(RAY_USAGE_STATS_ENABLED="0", OMP_NUM_THREADS="1")  # of the nodes and their actors
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "include_dashboard": False, "object_store_memory": STORE_BYTES, "_system_config": HEALTH}
        self.cluster = again(lambda: Cluster(initialize_head=True, head_node_args=head))
        self.nodes = [self.add_node() for _ in range(WORKERS)]
        self.address = self.cluster.address

    def add_node(self):
        return again(lambda: self.cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES))

    def kill_node(self):
        """Kill the processes of a worker node."""
        self.cluster.remove_node(self.nodes.pop(0), allow_graceful=False)

    def replace_nodes(self):
        """Start nodes in place of those that were killed."""
        while len(self.nodes) < WORKERS:
            self.nodes.append(self.add_node())
        self.cluster.wait_for_nodes()


class ByValue:
    """An object of a class that only the test knows: it is sent with the code of its class."""

    def __init__(self, value) -> None:
        self.value = value

    def __getattr__(self, name):
        return getattr(self.value, name)

    def __reduce__(self):
        from ray import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[type(self.value).__module__])
        return cloudpickle.loads, (cloudpickle.dumps(self.value),)


def photographs(folder: Path, count: int) -> Collection:
    """Make a collection of small images, one of which cannot be read."""
    folder.mkdir()
    random = np.random.default_rng(0)
    items = []
    for n in range(count):
        pixels = random.integers(0, 256, (40, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{n}.jpg")
        items.append(Item(f"p{n}", "train", image=f"{n}.jpg"))
    (folder / f"{DAMAGED}.jpg").write_bytes(b"")
    write_items(folder, items)
    return Collection.open(folder)
