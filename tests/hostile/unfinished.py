"""Cases that fail because the program does not follow a rule yet, by the rule."""

UNFINISHED: dict[str, tuple[str, ...]] = {
    "an import does not write into a run": ("import csv captions.csv captioner",),
    "an empty name is refused, and not replaced by the default": (
        "evaluate --model captioner --collection c --no-retrieval --split ''",
    ),
}
