"""Calibrate a captioner on the validation split: tags in its captions, and its confidence.

    python pretrained/calibrate.py RUN --collection COLLECTION [--photographs FOLDER]

writes calibration.json and calibration.safetensors into RUN and prints what was measured; with `--measure test` it only
measures an existing calibration on a split. COLLECTION holds the grid features of RUN, here those of make.py. The
weights of RUN must not change afterwards. FOLDER has the photographs of photographs.tsv: they are captioned, and the
evidence and verdicts go to measured-LANG.tsv. Without them the file of an earlier run is read; without this one, too,
the confidence is fitted on the validation split and on generated images alone.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

import elsewhere
from limner.data.collection import Collection
from limner.data.dataset import GenerationInput
from limner.data.examples import Item, StoredFeatures
from limner.decoding.ranking import Hypothesis
from limner.evaluation.calibration import (
    cross_validated,
    expected_calibration_error,
    fit_logistic,
    newton,
)
from limner.features.class_probabilities import pooled_vector
from limner.features.encoders.load import load_backbone_for
from limner.features.store import FeatureStore
from limner.inference.caption_nouns import CaptionNouns
from limner.inference.confidence import (
    WordEvidence,
    caption_evidence,
    confidences,
    image_evidence,
    mean_image,
    thing_evidence,
    word_evidence,
    word_evidence_at,
)
from limner.inference.generate import EncodedImages, encode_images, generate, generate_captions
from limner.inference.tagged_captions import mean_log_prob, name_tags, without_denied_words
from limner.inference.tags import People, Tag, Tagger, require_tagger
from limner.inference.unseen_words import is_known_word, with_unseen_nouns
from limner.metrics.cider import CiderD
from limner.runs.calibration import (
    Calibration,
    ConfidenceCalibration,
    FeatureStatistics,
    StoredCalibration,
    TagCalibration,
    load_calibration,
    save_calibration,
)
from limner.runs.trained_model import load_trained_model, sha256
from limner.synthetic.non_photographs import HELD_OUT, KINDS, draw_non_photograph
from limner.text.people_words import PEOPLE_WORDS

BACKGROUNDS = (0.0, 0.0002, 0.0004, 0.0006, 0.0008, 0.0012, 0.0016)
"""Probabilities that every class has in every image, of which validation chooses one."""
SHARES_DENIED = (0.002, 0.005, 0.01, 0.02, 0.05)
"""Shares of the training images with a word of which validation CIDEr chooses one; see `Work.denied_words`."""
MIN_CASES_OF_WORD, MIN_LIMIT = 50, 0.005
"""Words of fewer images, and those of which such images have a lower probability, are never denied."""
THRESHOLDS = (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7)
"""Probabilities of tags of which validation CIDEr chooses one."""
LOSSES = (0.1, 0.2, 0.3, 0.5, 1.0, 2.0)
"""Losses of log-probability per token of which validation CIDEr chooses one."""
SUBJECT_LOSSES = (-1000.0, 0.0, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 2.0)
"""Losses of log-probability per token by starting with a tag of which validation CIDEr chooses one."""
MIN_CASES, MIN_CASES_OF_KIND, MIN_PRECISION = 5, 20, 0.5
"""Nouns that people use for a smaller share of the training images with this tag are left out; those of fewer images
are judged by the nouns of the same kind, where these have enough."""
PROBABLE = 0.5
"""Probability of the tags by which nouns are judged."""
LEAST_SURE, WITHHELD = 0.5, 0.05
"""Captions of a lower confidence are withheld by default, but no larger share than this of the right captions of the
validation split."""
EVENT = "the main thing of the caption, its first noun, is in the photograph"
SHARES_OF_PEOPLE = (0.01, 0.02, 0.03, 0.05, 0.08, 0.12)
"""Shares of the training images in which two people mention people of which validation CIDEr chooses one."""
ALONE = (0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Probabilities of people beside a likely thing of which validation CIDEr chooses one."""
PEOPLE_PENALTY = 1000.0
"""Penalty of the regression of people."""
Hypotheses = Sequence[list[Hypothesis]]
FIT_SEEDS, TEST_SEEDS = range(0, 12), range(100, 112)


def main() -> None:
    """Calibrate, or measure a calibration."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--collection", type=Path, required=True)
    parser.add_argument("--photographs", type=Path, help="folder with the photographs of photographs.tsv")
    parser.add_argument("--measure", metavar="SPLIT", help="measure the calibration on this split, and change nothing")
    options = parser.parse_args()
    work = Work(options.run, Collection.open(options.collection))
    if options.measure:
        calibration = load_calibration(options.run)
        assert calibration is not None, f"{options.run}: no calibration"
        work.tagger.background = calibration.settings.background
        work.statistics = calibration.statistics
        work.tagger.people = People(PEOPLE_WORDS[work.plain.recipe.data.lang], calibration.statistics)
        print(json.dumps(work.measure(calibration, options.measure), indent=1))
        return
    tags = work.choose_tags()
    calibration = work.fit_confidence(tags, options.photographs)
    save_calibration(options.run, calibration)
    print(json.dumps(work.measure(calibration, "val"), indent=1))


class Work:
    """A captioner, its collection, and what is computed once."""

    def __init__(self, run: Path, collection: Collection) -> None:
        self.run, self.collection = run, collection
        self.plain = load_trained_model(run)
        self.settings = self.plain.recipe.decoding
        self.features = FeatureStore.open(collection, self.plain.recipe.features.tables, cache_mib=256)
        self.tagger: Tagger = require_tagger(Tagger.of(self.plain))
        self.model = with_unseen_nouns(self.plain, self.tagger.nouns, self.tagger.classifier)
        self.train = self.items("train")
        self._pooled: dict[str, dict[str, np.ndarray]] = {}
        self.vectors = self.pooled(self.train)
        self.statistics = FeatureStatistics.of(self.vectors)
        self.statistics = self.statistics._replace(people=self.fit_people())
        lang = self.plain.recipe.data.lang
        self.tagger.people = People(PEOPLE_WORDS[lang], self.statistics)
        self.nouns = CaptionNouns.of(self.model)
        self._backbone: Any = None
        self._decoded: dict[str, list[list[Hypothesis]]] = {}

    def fit_people(self) -> np.ndarray:
        """Fit the share of the captions of training images that mention people; validation images measure it."""
        lang = self.plain.recipe.data.lang

        words = self.plain.tokenizer.words
        pattern = re.compile("|".join(f" {re.escape('  '.join(words(word)))} " for word in PEOPLE_WORDS[lang]))

        def shares(items: Sequence[Item]) -> np.ndarray:
            said = [[pattern.search(text) is not None for text in own] for own in self.spoken(items)]
            return np.array([np.mean(own) if own else np.nan for own in said])

        mean, deviation = self.statistics.mean, self.statistics.deviation
        target = shares(self.train)
        rows = np.flatnonzero(~np.isnan(target))
        fitted = newton(((self.vectors - mean) / deviation)[rows].astype(float), target[rows], PEOPLE_PENALTY)
        val = self.items("val")
        seen, said = self.statistics._replace(people=fitted).people_probability(self.pooled(val)), shares(val)
        known = ~np.isnan(said)
        print(f"people in validation images: AUC {auc(seen[known], said[known] >= 0.4):.3f}")
        return np.asarray(fitted, np.float32)

    def pooled(self, items: Sequence[Item]) -> np.ndarray:
        """Return the pooled features of items of one split, which are read once."""
        split = items[0].split
        if split not in self._pooled:
            whole = self.collection.items(split)
            parts = (self.take(whole[start : start + 256]) for start in range(0, len(whole), 256))
            vectors = np.stack([pooled_vector(one) for part in parts for one in part])
            self._pooled[split] = dict(zip((item.id for item in whole), vectors, strict=True))
        return np.stack([self._pooled[split][item.id] for item in items])

    def items(self, split: str) -> list[Item]:
        """Return the items of a split that have captions in the language of the run."""
        lang = self.plain.recipe.data.lang
        return [item for item in self.collection.items(split) if item.texts(lang)]

    def take(self, items: Sequence[Item]) -> list[StoredFeatures]:
        """Return the features of items, all of which have some."""
        return [one or {} for one in self.features.take(items)]

    def references(self, items: Sequence[Item]) -> list[list[list[str]]]:
        """Return the tokens of the human captions of each item."""
        lang = self.plain.recipe.data.lang
        words = self.plain.tokenizer.words
        return [[words(one.text) for one in item.sentences if one.lang == lang] for item in items]

    def texts(self, hypotheses: Sequence[list[Hypothesis]]) -> list[str]:
        """Return the best caption of each item."""
        return [self.model.tokenizer.decode(n_best[0].tokens) for n_best in hypotheses]

    def scores(self, texts: Sequence[str], items: Sequence[Item]) -> np.ndarray:
        """Compute the CIDEr-D of each caption, in percent."""
        references = self.references(items)
        scorer = CiderD(references)
        return 100 * np.array([scorer.score(row, text.split()) for row, text in enumerate(texts)])

    def decode(self, items: Sequence[Item]) -> list[list[Hypothesis]]:
        """Caption the items of a split without tags, once."""
        split = items[0].split
        if split not in self._decoded:
            inputs = [GenerationInput(item, None, ()) for item in items]
            self._decoded[split] = generate([self.model], inputs, self.features, self.settings)
        return self._decoded[split]

    def probabilities(self, items: Sequence[Item]) -> np.ndarray:
        """Compute the probability of each noun for items."""
        return self.tagger.probabilities([{"pooled": one} for one in self.pooled(items)])

    def choose_background(self) -> float:
        """Choose the background with which the probability of the best tag predicts best that a person names it."""
        items = self.items("val")
        spoken = self.spoken(items)
        losses = {}
        for background in BACKGROUNDS:
            self.tagger.background = background
            probabilities = self.probabilities(items)
            best, top = probabilities.argmax(1), probabilities.max(1).clip(1e-3, 1 - 1e-3)
            named = [self.says(text, self.tagger.nouns[one].words) for text, one in zip(spoken, best, strict=True)]
            losses[background] = -float(np.log(np.where(named, top, 1 - top)).mean())
        print(f"log loss of the best tag by background: {losses}")
        return min(losses, key=losses.__getitem__)

    def spoken(self, items: Sequence[Item]) -> list[list[str]]:
        """Return the human captions of items, with spaces around every word."""
        return [[f" {'  '.join(one)} " for one in own] for own in self.references(items)]

    def says(self, captions: Sequence[str], words: Sequence[str], people: int = 1) -> bool:
        """Whether a number of human captions, of `spoken`, have one of some words."""
        spelled = [f" {'  '.join(self.plain.tokenizer.words(word))} " for word in words]
        return sum(any(word in text for word in spelled) for text in captions) >= people

    def denied_words(self, share: float) -> dict[str, float]:
        """Return the probability of words below which they are denied.

        All but a share of the training images of which two people use the word have a higher one. Words of few images
        and words that the classifier does not see are left out.
        """
        limits = {}
        for word, values in self.probabilities_of_words.items():
            limit = float(np.quantile(values, share)) if len(values) >= MIN_CASES_OF_WORD else 0.0
            if limit >= MIN_LIMIT:
                limits[word] = round(limit, 4)
        return limits

    @cached_property
    def probabilities_of_words(self) -> dict[str, list[float]]:
        """Probability of the nouns of every word in the training images of which two people use it."""
        captions = [[set(one) for one in own] for own in self.references(self.train)]
        probabilities = self.probabilities(self.train)
        nouns: dict[str, list[int]] = {}
        for number, noun in enumerate(self.tagger.nouns):
            for word in noun.words:
                if is_known_word(self.plain.tokenizer, word):
                    nouns.setdefault(word, []).append(number)
        found: dict[str, list[float]] = {word: [] for word in nouns}
        for own, row in zip(captions, probabilities, strict=True):
            for word, count in Counter(word for one in own for word in one & nouns.keys()).items():
                if count >= 2:
                    found[word].append(float(row[nouns[word]].sum()))
        return found

    def choose_denied(self, plain: Hypotheses) -> dict[str, float]:
        """Choose the largest share of `denied_words` with which validation CIDEr does not fall."""
        items = self.items("val")
        before, chosen = self.scores(self.texts(plain), items).mean(), dict[str, float]()
        for share in SHARES_DENIED:
            limits = self.denied_words(share)
            _, changed = self.without_denied(items, plain, limits)
            cider = self.scores(self.texts(changed), items).mean()
            count = sum(a is not b for a, b in zip(plain, changed, strict=True))
            print(f"denied below the quantile {share}: {len(limits)} words, {count} captions, CIDEr {cider:.2f}")
            if cider >= before:
                chosen = limits
        return chosen

    def choose_people(self, plain: Hypotheses, denied: dict[str, float], no_repeats: bool) -> dict[str, float]:
        """Add the words for people with the highest threshold with which validation CIDEr does not fall."""
        items = self.items("val")
        before = self.scores(self.texts(self.without_denied(items, plain, denied, no_repeats)[1]), items).mean()
        chosen = denied
        words = [
            word for word in PEOPLE_WORDS[self.plain.recipe.data.lang] if is_known_word(self.plain.tokenizer, word)
        ]
        pattern = re.compile("|".join(f" {re.escape(word)} " for word in words))
        spoken = self.spoken(self.train)
        rows = [row for row, own in enumerate(spoken) if sum(pattern.search(text) is not None for text in own) >= 2]
        seen = self.statistics.people_probability(self.vectors[rows])
        for share in SHARES_OF_PEOPLE:
            limits = denied | dict.fromkeys(words, round(float(np.quantile(seen, share)), 4))
            _, changed = self.without_denied(items, plain, limits, no_repeats)
            cider = self.scores(self.texts(changed), items).mean()
            count = sum(a is not b for a, b in zip(plain, changed, strict=True))
            print(
                f"people denied below {np.quantile(seen, share):.4f} (quantile {share}): {count} captions, "
                f"CIDEr {cider:.2f}"
            )
            if words and cider >= before:
                chosen = limits
        return chosen

    def choose_alone(self, plain: Hypotheses, denied: dict[str, float], no_repeats: bool) -> float:
        """Choose the highest probability of people beside a likely thing with which validation CIDEr does not fall.

        It may use up what the rules before have gained.
        """
        items = self.items("val")
        before, chosen = self.scores(self.texts(plain), items).mean(), 0.0
        for alone in ALONE:
            _, changed = self.without_denied(items, plain, denied, no_repeats, alone)
            cider = self.scores(self.texts(changed), items).mean()
            count = sum(a is not b for a, b in zip(plain, changed, strict=True))
            print(f"no people beside a likely thing below {alone}: {count} captions, CIDEr {cider:.2f}")
            if cider >= before:
                chosen = alone
        return chosen

    def choose_repeats(self, plain: Hypotheses, denied: dict[str, float]) -> bool:
        """Choose whether captions repeat nouns and words: not if validation CIDEr does not fall without."""
        items = self.items("val")
        before = self.scores(self.texts(self.without_denied(items, plain, denied)[1]), items).mean()
        _, changed = self.without_denied(items, plain, denied, no_repeats=True)
        after = self.scores(self.texts(changed), items).mean()
        print(f"CIDEr with repetitions {before:.2f}, without {after:.2f}")
        return bool(after >= before)

    def choose_tags(self) -> TagCalibration | None:
        """Choose what captions must not have and must name: nouns on the training split, thresholds on validation."""
        self.tagger.background = self.choose_background()
        left_out = self.nouns_nobody_uses()
        items = self.items("val")
        decoded = self.decode(items)
        denied = self.choose_denied(decoded)
        no_repeats = self.choose_repeats(decoded, denied)
        denied = self.choose_people(decoded, denied, no_repeats)
        alone = self.choose_alone(decoded, denied, no_repeats)
        tags = self.tags(items)
        images, plain = self.without_denied(items, decoded, denied, no_repeats, alone)
        widest = TagCalibration(threshold=min(THRESHOLDS), max_loss=0, certain=0, left_out=left_out)
        within, subject = (
            name_tags([self.model], images, self.settings, plain, tags, one)
            for one in (widest, widest.model_copy(update={"subject_loss": 1000.0}))
        )
        top = np.array([found[0].probability if found else 0.0 for found in tags])
        scores = [self.scores(self.texts(one), items) for one in (plain, within, subject)]
        levels = [
            np.array([mean_log_prob(self.plain, n_best[0]) for n_best in one]) for one in (plain, within, subject)
        ]
        differs = np.array([a[0].tokens != b[0].tokens for a, b in zip(plain, within, strict=True)])
        before = min(self.scores(self.texts(one), items).mean() for one in (decoded, plain))
        print(f"CIDEr without tags {before:.2f}; subject loss, threshold, loss, CIDEr, captions changed, subjects:")

        def try_out(threshold: float, loss: float, subject_loss: float, certain: float) -> tuple[float, int, int]:
            starts = levels[1] - levels[2] <= subject_loss
            lost = levels[0] - np.where(starts, levels[2], levels[1])
            use = (top >= threshold) & differs & ((lost <= loss) | (top >= certain))
            mixed = np.where(use, np.where(starts, scores[2], scores[1]), scores[0])
            return float(mixed.mean()), int(use.sum()), int((use & starts & (levels[1] != levels[2])).sum())

        tried = {key: try_out(*key) for key in product(THRESHOLDS, LOSSES, SUBJECT_LOSSES, [*THRESHOLDS, 1.0])}
        allowed = [key for key, (cider, _, _) in tried.items() if key[3] >= key[0] and cider >= before]
        if not allowed:
            rules = {"denied": denied, "no_repeats": no_repeats, "min_people_probability": alone}
            return TagCalibration(threshold=1, max_loss=0, certain=1, left_out=left_out, **rules)
        # Of the settings with which CIDEr does not fall, one that names most tags, and most of them as the subject.
        threshold, loss, subject_loss, certain = max(allowed, key=lambda key: (tried[key][1:], -key[3], key[2]))
        for key in allowed:
            if tried[key][1] >= tried[threshold, loss, subject_loss, certain][1] - 1:
                print(f"  {key} {tried[key]}")
        return TagCalibration(
            threshold=threshold,
            max_loss=loss,
            certain=certain,
            left_out=left_out,
            subject_loss=subject_loss,
            denied=denied,
            no_repeats=no_repeats,
            min_people_probability=alone,
        )

    def tags(self, items: Sequence[Item]) -> list[tuple[Tag, ...]]:
        """Compute the tags of items."""
        return self.tagger([{"pooled": one} for one in self.pooled(items)])

    def without_denied(
        self,
        items: Sequence[Item],
        decoded: Hypotheses,
        limits: dict[str, float],
        no_repeats: bool = False,
        alone: float = 0.0,
    ) -> tuple[EncodedImages, Hypotheses]:
        """Return the images and the hypotheses without denied words, and without repetitions if asked for."""
        inputs = [GenerationInput(item, None, ()) for item in items]
        images = encode_images([self.model], inputs, self.features, self.settings)
        classified = self.tagger.classify([{"pooled": one} for one in self.pooled(items)])
        found = self.tagger.denied(classified, limits, alone)
        once = self.nouns.single if no_repeats else None
        return without_denied_words([self.model], images, self.settings, decoded, found, once)

    def nouns_nobody_uses(self) -> tuple[str, ...]:
        """Return the nouns that the captions of training images with a probable tag seldom have."""
        top = self.probabilities(self.train)
        best, peak = top.argmax(1), top.max(1)
        texts = [" ".join(f" {' '.join(one)} " for one in own) for own in self.references(self.train)]
        words = self.plain.tokenizer.words
        left_out, kinds = [], dict[str, list[bool]]()
        cases: list[list[bool]] = []
        for number, noun in enumerate(self.tagger.nouns):
            rows = np.flatnonzero((best == number) & (peak >= PROBABLE))
            spelled = [f" {' '.join(words(word))} " for word in noun.words]
            used = [any(word in texts[row] for word in spelled) for row in rows]
            cases.append(used)
            kinds.setdefault(noun.kind, []).extend(used)
        for noun, used in zip(self.tagger.nouns, cases, strict=True):
            own = len(used) >= MIN_CASES
            evidence = used if own else kinds[noun.kind]
            if len(evidence) >= (MIN_CASES if own else MIN_CASES_OF_KIND) and np.mean(evidence) < MIN_PRECISION:
                left_out.append(noun.word)
        shown = {kind: f"{np.mean(used):.2f} of {len(used)}" for kind, used in kinds.items() if used}
        print(f"tags named by people, by kind: {shown}; {len(left_out)} nouns left out")
        return tuple(dict.fromkeys(left_out))

    def final_captions(self, items: Sequence[Item], tags: TagCalibration | None) -> list[Hypothesis]:
        """Caption items as `describe` does."""
        hypotheses = self.decode(items)
        if tags is not None:
            images, hypotheses = self.without_denied(
                items, hypotheses, tags.denied, tags.no_repeats, tags.min_people_probability
            )
            hypotheses = name_tags([self.model], images, self.settings, hypotheses, self.tags(items), tags)
        return [n_best[0] for n_best in hypotheses]

    def events(self, items: Sequence[Item], captions: Sequence[Hypothesis]) -> list[bool]:
        """Return whether a human caption of its item names the main thing of each caption, in any words."""
        people = PEOPLE_WORDS[self.plain.recipe.data.lang]
        synonyms = {word: set[str]() for noun in self.tagger.nouns for word in noun.words}
        for noun in self.tagger.nouns:
            for word in noun.words:
                synonyms[word] |= set(noun.words)
        found = []
        for one, text in zip(captions, self.spoken(items), strict=True):
            main = self.nouns.main(one.tokens)
            words = people if main in people else synonyms.get(main or "", {main} if main else set())
            found.append(bool(words) and self.says(text, sorted(words)))
        return found

    def caption_evidence(
        self, captions: Sequence[Hypothesis], images: Sequence[StoredFeatures]
    ) -> tuple[list[dict[str, float]], list[WordEvidence]]:
        """Compute the evidence about captions, and about their words."""
        mean = mean_image(self.statistics.mean, [spec.kind for spec in self.plain.config.features])
        tokens = [one.tokens for one in captions]
        words = word_evidence([self.model.model], tokens, images, mean)
        things = thing_evidence(self.tagger, self.nouns, tokens, self.tagger.classify(images))
        kinds = zip(
            map(caption_evidence, words), (image_evidence(one, self.statistics) for one in images), things, strict=True
        )
        return [{**caption, **image, **thing} for caption, image, thing in kinds], words

    def elsewhere(self, tags: TagCalibration | None, folder: Path | None) -> elsewhere.Measured:
        """Return the evidence about photographs from elsewhere: measured, that of an earlier run, or none."""
        lang = self.plain.recipe.data.lang
        path = elsewhere.TABLE.with_name(f"measured-{lang}.tsv")
        if folder is None:
            return elsewhere.read_or_none(path, ["outside"])
        rows = elsewhere.photographs()
        self._backbone = self._backbone or load_backbone_for(self.plain.config.features)
        images: list[StoredFeatures] = []
        for start in range(0, len(rows), 16):
            computed = self._backbone(
                np.stack([self._backbone.read(folder / one.file) for one in rows[start : start + 16]])
            )
            count = len(next(iter(computed.values())))
            images += [{name: values[row] for name, values in computed.items()} for row in range(count)]
        captions = self.captions_of(images, tags)
        evidence, _ = self.caption_evidence(captions, images)
        texts = [self.model.tokenizer.decode(one.tokens) for one in captions]
        right = [
            elsewhere.is_right(self.nouns, one.tokens, text, elsewhere.accepted(photograph.things, lang))
            for one, text, photograph in zip(captions, texts, rows, strict=True)
        ]
        for photograph, text, one in zip(rows, texts, right, strict=True):
            print(f"{'right' if one else 'wrong'}\t{'|'.join(photograph.things)}\t{text}")
        of_images = [image_evidence(one, self.statistics) for one in images]
        measured = elsewhere.Measured(of_images, evidence, right)
        elsewhere.write(path, rows, measured)
        return measured

    def captions_of(self, images: Sequence[StoredFeatures], tags: TagCalibration | None) -> list[Hypothesis]:
        """Caption images of no collection as `describe` does."""
        inputs = [GenerationInput(Item(str(row), "new", image=str(row)), None, ()) for row in range(len(images))]
        encoded = encode_images([self.model], inputs, Listed(images), self.settings)
        found = generate_captions([self.model], encoded, self.settings)
        if tags is not None:
            classified = self.tagger.classify(images)
            denied = self.tagger.denied(classified, tags.denied, tags.min_people_probability)
            once = self.nouns.single if tags.no_repeats else None
            encoded, found = without_denied_words([self.model], encoded, self.settings, found, denied, once)
            found = name_tags([self.model], encoded, self.settings, found, [one.tags for one in classified], tags)
        return [n_best[0] for n_best in found]

    def word_events(self, items: Sequence[Item], captions: Sequence[Hypothesis]) -> list[list[bool]]:
        """Return whether each word of each caption is in a human caption of its item."""
        spelling = self.model.tokenizer.spelling
        known = [{word for one in own for word in one} for own in self.references(items)]
        return [[spelling(token) in words for token in one.tokens] for one, words in zip(captions, known, strict=True)]

    def fit_confidence(self, tags: TagCalibration | None, folder: Path | None) -> StoredCalibration:
        """Fit the regressions on the validation split, on photographs from elsewhere and on generated images."""
        items = self.items("val")
        captions = self.final_captions(items, tags)
        images = self.take(items)
        of_captions, words = self.caption_evidence(captions, images)
        others = self.elsewhere(tags, folder)
        times = max(1, round(len(items) / max(1, len(others.right))))  # as much weight as the validation split
        generated = [image for kind in KINDS if kind not in HELD_OUT for image in self.generated(kind, FIT_SEEDS)]
        photographs = [image_evidence(one, self.statistics) for one in images] + times * others.of_images
        of_generated = [image_evidence(one, self.statistics) for one in generated]
        of_words, events, groups = list[dict[str, float]](), list[bool](), list[int]()
        for row, (known, one) in enumerate(zip(self.word_events(items, captions), words, strict=True)):
            of_words += [word_evidence_at(one, position) for position in range(len(known))]
            events += known
            groups += [row] * len(known)
        happened, count = self.events(items, captions), len(others.right)
        evidence, event = of_captions + times * others.of_captions, happened + times * others.right
        held_out = cross_validated(
            evidence, event, [*range(len(items)), *(times * list(range(len(items), len(items) + count)))]
        )
        for name, rows in (("validation", slice(len(items))), ("photographs", slice(len(items), len(items) + count))):
            own, known = held_out[rows], event[rows]
            if not known:
                continue
            print(
                f"main thing right, {name}: {np.mean(known):.3f} of {len(known)}; cross-validated ECE "
                f"{expected_calibration_error(own, known):.3f}, AUC {auc(own, known):.3f}, at {LEAST_SURE}: "
                f"{np.mean(own[np.array(known)] < LEAST_SURE):.2f} of right and "
                f"{np.mean(own[~np.array(known)] < LEAST_SURE):.2f} of wrong captions withheld"
            )
        of_word = cross_validated(of_words, events, groups)
        print(
            f"words in human captions: {np.mean(events):.3f}; cross-validated ECE "
            f"{expected_calibration_error(of_word, events):.3f}, AUC {auc(of_word, events):.3f}"
        )
        confidence = ConfidenceCalibration(
            event=EVENT,
            photograph=fit_logistic(photographs + of_generated, [True] * len(photographs) + [False] * len(generated)),
            caption=fit_logistic(evidence, event),
            word=fit_logistic(of_words, events),
            min_confidence=0.0,
        )
        calibration = self.stored(tags, confidence)
        found = self.confidences(captions, images, calibration)
        limit = min(LEAST_SURE, float(np.quantile(found[np.array(happened)], WITHHELD)))
        return self.stored(tags, confidence.model_copy(update={"min_confidence": round(limit, 3)}))

    def confidences(
        self, captions: Sequence[Hypothesis], images: Sequence[StoredFeatures], calibration: StoredCalibration
    ) -> np.ndarray:
        """Compute the confidence of captions."""
        tokens = [one.tokens for one in captions]
        things = thing_evidence(self.tagger, self.nouns, tokens, self.tagger.classify(images))
        return np.array([one.probability for one in confidences([self.model], tokens, images, calibration, things)])

    def stored(self, tags: TagCalibration | None, confidence: ConfidenceCalibration) -> StoredCalibration:
        """Combine the parts of a calibration of these weights."""
        weights = sha256(self.run / "model.safetensors")
        return StoredCalibration(
            Calibration(weights_sha256=weights, background=self.tagger.background, tags=tags, confidence=confidence),
            self.statistics,
        )

    def generated(self, kind: str, seeds: Sequence[int]) -> list[StoredFeatures]:
        """Compute the features of generated images that are no photographs."""
        self._backbone = self._backbone or load_backbone_for(self.plain.config.features)
        inputs = np.stack([self._backbone.read(draw_non_photograph(kind, seed)) for seed in seeds])
        computed = self._backbone(inputs)
        return [{name: values[row] for name, values in computed.items()} for row in range(len(seeds))]

    def measure(self, calibration: StoredCalibration, split: str) -> dict[str, Any]:
        """Measure captions with and without tags, and the confidence, on a split and on generated images."""
        settings = calibration.settings.confidence
        assert settings is not None
        items = self.items(split)
        plain = self.texts(self.decode(items))
        captions = self.final_captions(items, calibration.settings.tags)
        texts = [self.model.tokenizer.decode(one.tokens) for one in captions]
        images = self.take(items)
        found = self.confidences(captions, images, calibration)
        events = self.events(items, captions)
        withheld = np.array(found) < settings.min_confidence
        scores = {"without tags": self.scores(plain, items).mean(), "with tags": self.scores(texts, items).mean()}
        kept = [row for row in range(len(items)) if not withheld[row]]
        return {
            "split": split,
            "CIDEr": scores,
            "captions changed by tags": sum(a != b for a, b in zip(plain, texts, strict=True)),
            "event": float(np.mean(events)),
            "mean confidence": float(np.mean(found)),
            "ECE": expected_calibration_error(found, events),
            "AUC": auc(np.array(found), events),
            "reliability": reliability(found, events),
            "min_confidence": settings.min_confidence,
            "photographs withheld": float(withheld.mean()),
            "event among withheld and others": [
                float(np.mean(np.array(events)[withheld])) if withheld.any() else None,
                float(np.mean(np.array(events)[kept])),
            ],
            "generated withheld": {kind: self.share_withheld(kind, calibration) for kind in KINDS},
        }

    def share_withheld(self, kind: str, calibration: StoredCalibration) -> float:
        """Compute the share of generated images of a kind whose captions are withheld, with seeds of no calibration."""
        settings = calibration.settings.confidence
        assert settings is not None
        images = self.generated(kind, TEST_SEEDS)
        found = self.confidences(self.captions_of(images, calibration.settings.tags), images, calibration)
        return float(np.mean(found < settings.min_confidence))


class Listed:
    """A source of features whose items name rows of a list."""

    def __init__(self, features: Sequence[StoredFeatures]) -> None:
        self.features = features

    def take(self, items: Sequence[Item]) -> list[StoredFeatures | None]:
        """Return the features of items."""
        return [self.features[int(item.image or 0)] for item in items]


def auc(scores: np.ndarray, events: Sequence[bool]) -> float:
    """Compute the probability that an event has a higher score than no event."""
    order = np.argsort(np.argsort(scores))
    happened = np.asarray(events)
    yes, no = int(happened.sum()), int((~happened).sum())
    return float((order[happened].sum() - yes * (yes - 1) / 2) / max(1, yes * no))


def reliability(scores: Sequence[float], events: Sequence[bool]) -> list[list[float]]:
    """Return mean confidence, frequency and number in each tenth of the observations."""
    order = np.argsort(scores)
    parts = zip(
        np.array_split(np.asarray(scores)[order], 10), np.array_split(np.asarray(events)[order], 10), strict=True
    )
    return [[round(float(a.mean()), 3), round(float(b.mean()), 3), len(a)] for a, b in parts]


if __name__ == "__main__":
    main()
