"""The n-gram language model of a phrase-based model as an ARPA file, which KenLM, SRILM and Moses read."""

from __future__ import annotations

import os
from pathlib import Path

from limner.errors import SettingsError
from limner.models.phrase_based import PhraseBased, require_compiler
from limner.runs.trained_model import load_trained_model
from limner.storage.outputs import require_outside, require_writable


def export_language_model(run: Path | str, out: Path | str) -> int:
    """Write the language model of a phrase-based run; return the number of its n-grams.

    Args:
        run: run directory.
        out: new file.

    Raises:
        SettingsError: the model has no n-gram language model, or the file must not be written.
        RunError: the run is not complete.
        MissingExtraError: Numba is not installed.
        WriteError: the file cannot be written.
    """
    out = Path(out)
    what = f"OUT {out}"
    if os.path.lexists(out):
        raise SettingsError(f"{what}: exists; name a new file, because nothing in an ARPA file tells who wrote it")
    require_outside(out, what, can_force=False)
    require_writable(out.parent, what)
    trained = load_trained_model(Path(run))
    if not isinstance(trained.model, PhraseBased):
        raise SettingsError(
            f"{run}: model '{trained.recipe.model.name}' has no n-gram language model; name a phrase-based run, or "
            "choose --format onnx"
        )
    require_compiler()
    from limner.smt.arpa import write_arpa

    model = trained.model.language_model()
    write_arpa(model, trained.tokenizer.entries, out)
    return len(model.firsts)
