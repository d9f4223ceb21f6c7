"""Commands that make the feature tables of the recipes, for messages; `docs/train.md` lists them as well."""

from __future__ import annotations

_MOBILENET, _LITE2 = "--backbone google/mobilenet_v2_1.0_224", "--backbone efficientnet-lite2"
TABLE_OPTIONS = {
    "mobilenet_v2": f"{_MOBILENET} --name mobilenet_v2",
    "mobilenet_v2.grid": f"{_MOBILENET} --kind both --size 448 --name mobilenet_v2",
    "mobilenet_v2.frames": f"{_MOBILENET} --kind grid --frames 16 --name mobilenet_v2",
    "efficientnet-lite2": _LITE2,
    "efficientnet-lite2.grid": f"{_LITE2} --kind both --size 300 --resize squash",
    "lite2": f"{_LITE2} --kind both --size 300 --resize squash --views 2 --name lite2",
    "lite2.grid": f"{_LITE2} --kind both --size 300 --resize squash --views 2 --name lite2",
    "lite2_16.grid": f"{_LITE2} --layer stage5 --kind grid --size 256 --resize squash --name lite2_16",
    "mobilenet_v2_regions": f"{_MOBILENET} --boxes FILE --name mobilenet_v2_regions",
    "vgg16": "--backbone vgg16:FILE --name vgg16",
    "vgg19": "--backbone vgg19:FILE --name vgg19",
    "vgg19.grid": "--backbone vgg19:FILE --kind both --name vgg19",
    "vgg19_regions": "--backbone vgg19:FILE --boxes FILE --regions 4 --name vgg19_regions",
    "resnet50_res4f.grid": "--backbone microsoft/resnet-50 --layer res4f --kind grid --name resnet50_res4f",
    "kmeans": "--backbone kmeans:FILTERS",
    "pixels64": "--backbone pixels:64",
    "pixels96": "--backbone pixels:96",
    "pixels32.frames": "--backbone pixels:32 --frames 16",
    "logmel": "--backbone logmel",
    "logmel_frames": "--backbone logmel:62",
}
"""Options of `limner features` by the name of the table that a recipe reads."""


def table_command(name: str, collection: str) -> str | None:
    """Return the command that makes a table of a collection; None for a table that no such command is known for."""
    options = TABLE_OPTIONS.get(name)
    return None if options is None else f"limner features {collection} {options}"
