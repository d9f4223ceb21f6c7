"""Options of an evaluation, their checks and their signature."""

from __future__ import annotations

from collections.abc import Iterable

from limner.bounds import Bytes, CountOrNone, Seed
from limner.decoding.settings import DecodingSettings
from limner.errors import SettingsError
from limner.evaluation.regions import RegionOptions
from limner.features.controls import ImageControl
from limner.metrics import REGION_METRICS, Score
from limner.retrieval.all_pairs import MEMORY_BUDGET
from limner.retrieval.marginal import MARGINAL_IMAGES
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import TrainedModel
from limner.settings import Settings


class EvaluationOptions(Settings):
    """Options of an evaluation."""

    split: str | None = None
    """Split to evaluate; None for the recipe's test split."""
    decoding: DecodingSettings | None = None
    """Decoding settings; None for the recipe's."""
    measures: EvaluationSettings | None = None
    """Additional measures; None for the recipe's."""
    metrics: tuple[str, ...] | None = None
    """Names of metrics of sentences or labels, or `map` and `localisation_map` of regions; None for all metrics of the
    target."""
    retrieval: bool = True
    """Whether to evaluate image-text retrieval, which scores every sentence with every image."""
    marginal_images: CountOrNone = MARGINAL_IMAGES
    """Number of training images sampled for the normalisation of Mao et al. (2015), eq. 7."""
    image_control: ImageControl = "right"
    """Images given to the model in place of the right ones, see `control_features`."""
    skip_missing: bool = False
    """Whether items whose image has no features are left out and counted instead of being an error."""
    seed: Seed = 1
    """Seed of sampled sentences, of shuffled images, and of the example queries."""
    budget: Bytes = MEMORY_BUDGET
    """Working memory of retrieval in bytes."""
    exact: bool = False
    """Whether retrieval is computed in float32 by whole softmaxes, see `pair_arithmetic`."""
    regions: RegionOptions = RegionOptions()
    """Options of a dense captioner."""


def sentence_metrics(options: EvaluationOptions) -> tuple[str, ...] | None:
    """Return the metrics of sentences or labels among the chosen ones; None if no metrics were chosen."""
    if not options.metrics:
        return None
    return tuple(name for name in options.metrics if name not in REGION_METRICS)


def require_regions(model: TrainedModel, options: EvaluationOptions) -> None:
    """Check that there are detected regions for their metrics, and to give the sentences of a baseline to.

    Raises:
        SettingsError: the model does not describe regions, or the images are not the right ones; or there are metrics
            of sentences for a model that only ranks.
    """
    if options.metrics and not model.recipe.model.generates:
        raise SettingsError(
            f"metric '{options.metrics[0]}': expected a model that generates sentences, got "
            f"'{model.recipe.model.name}', which ranks images and sentences; leave out --metrics"
        )
    baseline = options.regions.baseline
    chosen = [name for name in options.metrics or () if name in REGION_METRICS]
    if chosen and not model.recipe.model.describes_regions:
        raise SettingsError(
            f"metric '{chosen[0]}': expected a model that describes regions, got '{model.recipe.model.name}'; choose "
            "metrics of sentences"
        )
    if baseline and not model.recipe.model.describes_regions:
        raise SettingsError(
            f"region baseline '{baseline}': expected a model that describes regions, got '{model.recipe.model.name}'; "
            "leave it out"
        )
    if baseline and options.image_control != "right":
        raise SettingsError(
            f"region baseline '{baseline}': expected image control 'right', got '{options.image_control}'; leave "
            "one of them out"
        )


def changed_settings(measures: EvaluationSettings, default: EvaluationSettings) -> str:
    """Return the signature of the additional measures that differ from the recipe's."""
    before = default.model_dump()
    return ",".join(f"{key}{value or 0}" for key, value in measures.model_dump().items() if value != before[key])


def with_control_signature(scores: Iterable[Score], options: EvaluationOptions) -> Iterable[Score]:
    """Append the image control to the signature of every score, unless the images are the right ones."""
    control = options.image_control
    suffix = {"right": "", "shuffled": f"|images:shuffled,seed{options.seed}"}.get(control, f"|images:{control}")
    return (score._replace(signature=score.signature + suffix) for score in scores)
