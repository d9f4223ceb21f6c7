"""Initial weights of a training from another run, from word embeddings, or from the convolutions of another run."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import cast

import torch
from torch import nn

from limner.errors import SettingsError
from limner.layers.image_encoder import trained_convolutions
from limner.models import Model
from limner.models.capabilities import PretrainedEmbeddingModel
from limner.models.phrase_based import PhraseBased
from limner.runs.trained_model import load_trained_model, sha256, transfer_weights
from limner.runs.training_settings import TrainingSettings
from limner.storage.tensors import load_tensors
from limner.text.embeddings import initial_embeddings
from limner.text.tokenizer import Tokenizer
from limner.text.vocab import SPECIAL_TOKENS

logger = logging.getLogger(__name__)


def initialise_from_run(init: Path, model: Model) -> dict[str, str]:
    """Copy the weights of another run whose names and shapes match; return a summary for the records.

    Raises:
        SettingsError: no weight matches, or the model is estimated without initial weights.
    """
    if isinstance(model, PhraseBased):
        raise SettingsError(
            f"--init {init}: a phrase-based model is estimated from its sentence pairs alone, without initial weights; "
            "leave --init out"
        )
    weights = init / "model.safetensors"
    transferred = transfer_weights(model, load_tensors(weights))
    if transferred.new and not transferred.taken:
        raise SettingsError(
            f"{init}: expected weights with the names and shapes of this model's, found none; name a run of the same "
            "model and sizes (model.*), or leave out --init"
        )
    logger.info("%s: %s", init, transferred)
    missing = [name for name in transferred.new if "embedding" in name or name.startswith("encoder")]
    if missing:
        logger.warning(
            "%s: no weights of the same name and shape for %s, which keep their random initial values: that run has "
            "another model or other sizes (model.*)",
            init,
            ", ".join(missing),
        )
    return {"init": f"{init}: {transferred}", "init_sha256": sha256(weights)}


def initialise_embeddings(model: Model, tokenizer: Tokenizer, settings: TrainingSettings) -> dict[str, str]:
    """Initialise the word embeddings from pre-trained ones; return the coverage of the vocabulary for the records."""
    assert settings.pretrained_embeddings is not None
    if not isinstance(model, PretrainedEmbeddingModel):
        raise SettingsError(
            "training.pretrained_embeddings: this model does not support pre-trained word embeddings; leave it out"
        )
    embeddings = initial_embeddings(
        settings.pretrained_embeddings, tokenizer.entries, model.word_dim, settings.seed, setting="model.word_dim"
    )
    model.init_word_embeddings(embeddings.values)
    words = len(tokenizer) - len(SPECIAL_TOKENS)
    coverage = (
        f"{settings.pretrained_embeddings.name}: {embeddings.num_pretrained:,} of {words:,} words found "
        f"({embeddings.num_pretrained / words:.0%})"
    )
    logger.info("%s; the others are drawn from the same distribution", coverage)
    return {"embeddings": coverage}


def initialise_image_encoder(model: Model, run: Path) -> dict[str, str]:
    """Copy the convolutions of another run's model; return a summary for the records.

    The two models, their vocabularies and the projections of their image encoders may differ.

    Raises:
        RunError: `run` holds no complete model.
        SettingsError: one of the models trains no convolutions, or their shapes differ.
    """
    setting = "training.pretrained_image_encoder"
    with torch.random.fork_rng(
        devices=[]
    ):  # building the other model leaves the random state of this training as it is
        source = trained_convolutions(cast(nn.Module, load_trained_model(run).model))
    own = trained_convolutions(cast(nn.Module, model))
    if not own:
        raise SettingsError(f"{setting}: this model trains no convolutions on pixels or feature maps; leave it out")
    if not source:
        raise SettingsError(f"{setting}: {run}: expected convolutions on pixels or feature maps, found none")
    weights = source[0].state_dict()
    for layers in own:
        expected, found = ({name: tuple(w.shape) for name, w in s.items()} for s in (layers.state_dict(), weights))
        if expected != found:
            raise SettingsError(
                f"{setting}: {run}: its convolutions have other shapes than this model's; set "
                "model.image_encoder.convnet_width and features.tables as in that run, or leave it out"
            )
        layers.load_state_dict(weights)
    summary = f"{run}: {len(weights)} weights of the convolutions"
    logger.info("initialised from %s", summary)
    return {"image_encoder": summary, "image_encoder_sha256": sha256(run / "model.safetensors")}
