"""Loading trained and exported models for inference; torch is imported for trained models only."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, overload

from limner.errors import RunError, SettingsError, missing_extra
from limner.generation.translation import BaseTranslator
from limner.runs.pretrained import choose_runs, local_folder, model_type, pretrained_translator
from limner.runtime import generators
from limner.runtime.manifest import is_exported
from limner.text.labels import LABEL_LANGUAGES

if TYPE_CHECKING:
    from limner.features.encoders.base import AnyBackbone
    from limner.generation.captioning import BaseCaptioner
    from limner.hub.generators import HubCaptioner, HubTranslator


@overload
def load(*, lang: str | None = None, device: str = "cpu") -> BaseCaptioner: ...
@overload
def load(*, to: str, source: str | None = None, device: str = "cpu") -> BaseTranslator: ...
@overload
def load(
    *runs: Path | str,
    lang: str | None = None,
    to: str | None = None,
    source: str | None = None,
    backbone: AnyBackbone = None,
    device: str = "cpu",
    encode_images: bool = True,
    **hub: Any,  # noqa: ANN401
) -> Any: ...  # noqa: ANN401  (the files of the run decide)
def load(
    *runs: Path | str,
    lang: str | None = None,
    to: str | None = None,
    source: str | None = None,
    backbone: AnyBackbone = None,
    device: str = "cpu",
    encode_images: bool = True,
    **hub: Any,
) -> Any:
    """Load a model, or several trained models as an ensemble; without arguments, the built-in captioner.

    The files of a run decide between a `Captioner`, a `Translator`, a `Classifier` and their exported forms. Built-in
    models are loaded as exported; `Captioner.load(pretrained_run())` has their tensors and uses a GPU.

    Args:
        runs: run directories; or one exported model, or one model of transformers by folder or `hub:ORG/NAME@REVISION`.
        lang: language of the built-in captioner, or of the default prompt of a model of the hub, 'en' by default.
        to: language that the built-in translator translates to, or a model of the hub; not with other `runs` or `lang`.
        source: language that is translated from; default: the other language, or the model's.
        backbone: where the network is that computed the features, if it has moved since the training; or a backbone.
        device: 'cpu' or 'cuda'.
        encode_images: false where no image will be given; the backbone is then not loaded.
        hub: settings of a model of transformers: `prompt`, `keep_preamble` and `dtype`, see `HubSettings`.

    Raises:
        SettingsError: the model has no such language, or a language is given with other `runs`.
        RunError: a directory holds no complete model, or the models do not form an ensemble.
        BackboneError: the backbone cannot be found or loaded.
        MissingExtraError: the model needs torch.
    """
    languages = {name: value for name, value in (("to", to), ("source", source)) if value is not None}
    if languages and not runs and lang is None:
        runs, languages = (pretrained_translator(to, source),), {}
    elif languages and (lang is not None or model_type(Path(local_folder(runs[0]))) is None):
        name, value = next(iter(languages.items()))
        raise SettingsError(f"{name} '{value}': selects the built-in translator; leave out {(*runs, 'lang')[0]}")
    runs = tuple(map(local_folder, runs))
    if runs and model_type(Path(runs[0])) is not None:
        return cast("HubCaptioner", load_hub(*runs, sample=True, device=device, lang=lang, **languages, **hub))
    runs = choose_runs(runs, lang)
    if hub:
        raise SettingsError(f"{', '.join(hub)}: has an effect only on a model of the hub, which {runs[0]} is not")
    if len(runs) == 1 and is_exported(Path(runs[0])) and backbone is None and device == "cpu":
        return generators.load(runs[0])
    return _load_runs(runs, backbone, device, encode_images)


def _load_runs(runs: Sequence[Path | str], backbone: AnyBackbone, device: str, encode_images: bool) -> Any:  # noqa: ANN401
    """Load trained models; arguments and errors are described at `load`."""
    from limner.runs.records import require_run_directory

    for run in runs:  # before torch is imported
        require_run_directory(Path(run))
    try:
        from limner.inference.base import load_models
        from limner.inference.captioner import Captioner
        from limner.inference.classifier import Classifier
        from limner.inference.translator import Translator
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"{runs[0]}: a model that 'limner export' has not written") from None

    models, encoder = load_models(runs, backbone, device, encode_images)
    if models[0].recipe.data.lang in LABEL_LANGUAGES:
        return Classifier(models, encoder)
    return Captioner(models, encoder) if models[0].source is None else Translator(models, encoder)


def load_translator(folder: Path, **options: Any) -> BaseTranslator:  # noqa: ANN401
    """Load an exported translator, or one of the hub with the options of `load_hub`; RunError for another model."""
    if model_type(folder) is None:
        return generators.load_translator(folder)
    return cast("HubTranslator", load_hub(folder, tasks=("translate",), **options))


def load_hub(
    *runs: Path | str,
    tasks: Sequence[str] = ("describe", "translate"),
    sample: bool = False,
    **options: Any,  # noqa: ANN401
) -> Any:  # noqa: ANN401
    """Load a model of the hub that has one of some tasks: 'describe', 'translate' or 'match'.

    `sample` says whether its `generation_config` may choose sampling; see `limner.hub.generators.load` for the options
    and the errors. RunError for several runs; MissingExtraError without torch.
    """
    if len(runs) > 1:
        raise RunError(f"{runs[0]}: a model of the hub is no part of an ensemble; name it alone")
    folder = Path(runs[0])
    try:
        from limner.hub.generators import load as load_model
    except ModuleNotFoundError as error:
        raise missing_extra(error, f"{folder}: a model of the hub") from None
    model: Any = load_model(folder, tasks, **options)
    if not sample and "decoding" in vars(model):
        model.decoding = model.decoding.model_copy(update={"sample": None})
    return model
