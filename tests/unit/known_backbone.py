"""Base of backbones with known output."""

from limner.features.preprocessing import Preprocessing, read_image
from limner.features.spec import FeatureSpec
from limner.media.modality import IMAGE


class KnownBackbone:
    """Reads images as 4 x 4 pixels; a table of its features has a name, kind, shape and for a grid its size."""

    modality = IMAGE

    def __init__(self, *tables, version="1"):
        self.preprocessing = Preprocessing(resize="squash", size=4, short=4)
        preprocessing = self.preprocessing.model_dump(mode="json")
        common = {"backbone": "eye", "preprocessing": preprocessing, "weights_sha256": version}
        self.specs = tuple(FeatureSpec(**table, **common) for table in tables)

    def read(self, source):
        return read_image(source, self.preprocessing)
