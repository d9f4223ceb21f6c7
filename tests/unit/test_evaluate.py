"""Evaluation of a split: scores, signatures and errors."""

import math
import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch

from limner.data.batching import MAX_TOKENS_PER_EXAMPLE
from limner.data.collection import Collection, write_items
from limner.data.dataset import GenerationInput
from limner.data.examples import Item, ItemSentence, collate
from limner.decoding.scoring import score_examples
from limner.decoding.settings import DecodingSettings
from limner.errors import CollectionError, FeatureError, RunError
from limner.evaluation.evaluate import EvaluationOptions, evaluate
from limner.evaluation.validate import validate
from limner.features.extract import extract
from limner.inference.explain import explain
from limner.inference.features import open_features
from limner.inference.generate import generate
from limner.runs.evaluations import read_evaluations, save_evaluation
from limner.runs.pretrained import pretrained_run
from limner.runs.recipe import EvaluationSettings
from limner.runs.trained_model import load_trained_model

METRICS = ("bleu1", "bleu2", "bleu4", "cider", "rouge_l")


@pytest.fixture(scope="module")
def evaluated(model, tiny):
    return evaluate([model], tiny, options=EvaluationOptions(metrics=METRICS), command="limner evaluate …")


def values(evaluation):
    return {score.name: score.value for score in evaluation.scores}


def signature(evaluation, name):
    return next(score.signature for score in evaluation.scores if score.name == name)


def test_every_score_has_a_signature(evaluated):
    expected = {*METRICS, "perplexity"}
    expected |= {f"{way}_{what}" for way in ("image_to_text", "text_to_image") for what in ("r1", "r10", "median_rank")}
    assert expected <= set(values(evaluated))
    assert all(score.signature for score in evaluated.scores)
    assert evaluated.split == "test"
    assert len(evaluated.items) == 8
    assert [line.right for query in evaluated.retrieval.image_to_text for line in query.top].count(True) > 0


def test_notes_tell_few_sentences_cut_hypotheses_unknown_words_and_training_data(model, own_tiny, backbone_of):
    odd = Item("odd", "few", image="test0.png", sentences=(ItemSentence("en", "zyzzyva xylem"),))
    write_items(own_tiny.path, [odd, Item("mute", "few")])
    collection = Collection.open(own_tiny.path)
    extract(collection, backbone_of())
    short = DecodingSettings(max_length=1)
    options = EvaluationOptions(split="few", metrics=("bleu1",), retrieval=False, decoding=short)
    assert evaluate([model], collection, options=options).notes == (
        "skipped 1 items without a sentence in 'en', for example mute",
        "note: 2 tokens, 100.0% of all, are not in the vocabulary; perplexity counts them as <unk>, which lowers it",
        "note: 1 sentences in split 'few': too few to choose a model by, or to measure it",
        "note: 1 hypotheses were cut off at decoding.max_length=1 before their end",
    )
    on_train = evaluate([model], collection, options=options.model_copy(update={"split": "train", "decoding": None}))
    assert any("are of split 'train', which the model was trained on" in line for line in on_train.notes)


def test_a_trained_model_describes_its_training_images(evaluated):
    assert values(evaluated)["bleu2"] > 50
    assert values(evaluated)["perplexity"] < 6
    assert values(evaluated)["text_to_image_median_rank"] <= 2  # two of the eight images have the same colour,
    assert values(evaluated)["image_to_text_median_rank"] <= 4  # and the same sentences, which tie


def test_the_signature_names_decoding_and_marginal_settings(evaluated, model, tiny):
    assert signature(evaluated, "bleu4").endswith("|decoding:beam1,penalty0,max_length12")
    assert signature(evaluated, "novel").endswith("|decoding:beam1,penalty0,max_length12")
    assert "decoding:" not in signature(evaluated, "perplexity") + signature(evaluated, "image_to_text_r1")
    assert signature(evaluated, "image_to_text_r1").endswith("|fp32|marginal:32")
    assert "marginal" not in signature(evaluated, "text_to_image_r1")
    other = evaluate(
        [model],
        tiny,
        options=EvaluationOptions(
            decoding=DecodingSettings(beam_size=2, length_penalty=0.5, max_length=12),
            metrics=("bleu4",),
            marginal_images=5,
        ),
    )
    assert signature(other, "bleu4").endswith("|decoding:beam2,penalty0.5,max_length12")
    assert other.decoding == "beam2,penalty0.5,max_length12"
    assert evaluated.decoding == ""
    assert signature(other, "image_to_text_r1").endswith("marginal:5")


def test_validation_gives_the_scores_of_the_evaluation(evaluated, model, examples):
    brief = validate(model, examples, ["perplexity", "bleu4", "cider"])
    assert brief == pytest.approx({name: values(evaluated)[name] for name in brief})
    assert list(brief) == ["perplexity", "bleu4", "cider"]


@pytest.fixture(scope="module")
def translating(toy_run):
    return load_trained_model(toy_run), Collection.open(toy_run.parent / "collection")


def test_a_long_sentence_changes_neither_other_results_nor_memory(translating, monkeypatch):
    """A long sentence would pad its whole batch and the results of the batch."""
    model, _ = translating
    read = []

    def watched(examples):
        batch = collate(examples)
        read.append(batch.source.shape)
        return batch

    sources = ["eins", "zwei drei"] * 8
    sources.insert(5, "eins zwei " * 1500)
    inputs = [GenerationInput(Item(str(row), "new"), source, ()) for row, source in enumerate(sources)]
    settings = DecodingSettings(max_length=6)
    one = generate([model], inputs, None, settings, batch_size=1)
    for module in ("limner.inference.base", "limner.inference.explain"):
        monkeypatch.setattr(f"{module}.collate", watched)
    together = generate([model], inputs, None, settings, batch_size=16)
    assert [evaluated[0].tokens for evaluated in together] == [evaluated[0].tokens for evaluated in one]
    explained = explain(model, inputs, [evaluated[0] for evaluated in together], None, batch_size=16)
    assert [one.source for one in explained] == [tuple(source.split()) for source in sources]
    assert sum(rows for rows, _ in read) == 2 * len(sources)
    assert len(read) < 8
    assert all(rows == 1 or rows * words <= 16 * MAX_TOKENS_PER_EXAMPLE for rows, words in read)


def test_novelty_excludes_sentences_without_references(translating, tmp_path):
    model, collection = translating
    more = [Item("bare", "train", sentences=(ItemSentence("en", "one"),))]
    more.append(Item("made", "train", sentences=(ItemSentence("en", "one"), ItemSentence("de", "eins", 0, "run:0123"))))
    write_items(tmp_path, [*collection.items(), *more])
    again = evaluate([model], Collection.open(tmp_path), options=EvaluationOptions(metrics=("bleu1",)))
    assert (again.left_out, len(again.items)) == (0, len(collection.items()))


def test_an_evaluation_of_a_built_in_model_is_saved_in_the_working_directory(evaluated, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert save_evaluation(evaluated, pretrained_run("de")).parent == Path("de", "evaluation")
    assert read_evaluations(pretrained_run("de")) == read_evaluations(tmp_path / "de") == [evaluated]


def test_items_without_a_sentence_are_skipped(evaluated, model, own_tiny):
    write_items(own_tiny.path, [Item("silent", "test", image=own_tiny.items("test")[0].image)])
    again = evaluate([model], Collection.open(own_tiny.path), options=EvaluationOptions(metrics=METRICS))
    assert values(again) == pytest.approx(values(evaluated))


def test_items_without_an_image_are_described_but_excluded_from_retrieval(evaluated, model, own_tiny, caplog):
    write_items(own_tiny.path, [Item("blind", "test", sentences=(ItemSentence("en", "a red wall"),))])
    again = evaluate([model], Collection.open(own_tiny.path), options=EvaluationOptions(metrics=METRICS))
    assert "retrieval leaves out 1 item without an image" in caplog.text
    assert len(again.items) == 9
    assert values(again)["text_to_image_r1"] == pytest.approx(values(evaluated)["text_to_image_r1"])
    assert values(again)["image_to_text_r1"] == pytest.approx(values(evaluated)["image_to_text_r1"])


def test_retrieval_is_skipped_for_a_split_without_images(model, own_tiny, caplog):
    write_items(own_tiny.path, [Item("blind", "words", sentences=(ItemSentence("en", "a red wall"),))])
    evaluated = evaluate(
        [model], Collection.open(own_tiny.path), options=EvaluationOptions(split="words", metrics=("bleu1",))
    )
    assert evaluated.retrieval is None
    assert "perplexity" in values(evaluated)
    assert "image_to_text_r1" not in values(evaluated)


def test_features_of_another_network_are_refused_by_name(model, own_tiny, backbone_of):
    shutil.rmtree(own_tiny.path / "features" / "colour.lance")
    with pytest.raises(FeatureError, match=r"colour\.lance: no such feature table \(available: "):
        evaluate([model], own_tiny)
    extract(own_tiny, backbone_of(version="2"))
    with pytest.raises(FeatureError, match=r"features/colour: expected eye .*weights_sha256: 2 / 1"):
        evaluate([model], own_tiny)


def test_an_item_without_features_is_named_or_excluded(evaluated, model, own_tiny):
    write_items(own_tiny.path, [Item("late", "test", image="late.png", sentences=(ItemSentence("en", "a wall"),))])
    collection = Collection.open(own_tiny.path)
    with pytest.raises(FeatureError, match=r"split 'test' has 1 item without features .*'late'; run 'limner features'"):
        evaluate([model], collection)
    again = evaluate([model], collection, options=EvaluationOptions(metrics=METRICS, skip_missing=True))
    assert (again.left_out, evaluated.left_out) == (1, 0)
    assert values(again) == pytest.approx(values(evaluated))


def test_models_with_different_vocabularies_cannot_form_an_ensemble(model, tiny):
    """The vocabularies have equal sizes and differ in their words only."""
    other = model._replace(config=model.config.model_copy(update={"tokenizer_sha256": "0" * 64}))
    with pytest.raises(RunError, match="must share one vocabulary"):
        evaluate([model, other], tiny, options=EvaluationOptions(metrics=METRICS))
    with pytest.raises(RunError, match="must share one vocabulary"):
        inputs = [GenerationInput(item, None, ()) for item in tiny.items("test")]
        generate([model, other], inputs, open_features(model, tiny), DecodingSettings())


def test_the_evaluation_of_an_ensemble_does_not_replace_that_of_one_model(evaluated, model, tiny, tmp_path):
    both = evaluate([model, model], tiny, options=EvaluationOptions(metrics=("bleu4",), retrieval=False))
    assert both.decoding == "beam1,penalty0,max_length12,models2"
    assert signature(both, "bleu4").endswith(f"|decoding:{both.decoding}")
    for evaluation in (evaluated, both):
        save_evaluation(evaluation, tmp_path)
    assert len(read_evaluations(tmp_path)) == 2


@torch.no_grad()
def test_the_perplexity_of_an_ensemble_is_that_of_the_mean_probability_of_each_token(model, tiny, examples):
    other, generator = model._replace(model=deepcopy(model.model)), torch.Generator().manual_seed(1)
    for weight in other.model.parameters():
        weight += torch.randn(weight.shape, generator=generator) / 10
    total, tokens = 0.0, 0
    for row in range(len(examples)):
        batch = examples.batch([row])
        probs = [one.model(batch).logits[0].double().softmax(-1) for one in (model, other)]
        target = batch.target_out[0]
        mean = sum(p[torch.arange(len(target)), target] for p in probs) / 2
        total, tokens = total + float(mean.log().sum()), tokens + len(target)
    options = EvaluationOptions(metrics=("bleu4",), retrieval=False)
    alone, both = (evaluate(models, tiny, options=options) for models in ([model], [model, other]))
    assert values(both)["perplexity"] == pytest.approx(math.exp(-total / tokens), rel=1e-5)
    assert values(both)["perplexity"] != pytest.approx(values(alone)["perplexity"], rel=1e-3)
    assert signature(both, "perplexity") == f"{signature(alone, 'perplexity')}|models:2"


def test_an_evaluation_with_fewer_scores_does_not_replace_a_complete_one(evaluated, tmp_path):
    whole = save_evaluation(evaluated, tmp_path)
    fewer = evaluated.model_copy(update={"scores": evaluated.scores[:1]})
    assert save_evaluation(fewer, tmp_path).name == f"{evaluated.name}-part.json"
    assert len(read_evaluations(tmp_path)) == 2
    assert save_evaluation(evaluated, tmp_path) == whole


def test_skipped_words_are_conditioned_on_and_not_scored(model, examples):
    evaluated = score_examples(model.model, examples, skip_words=2)
    long = [row for row, target in enumerate(examples.targets) if len(target) >= 5]
    assert 0 < len(long) < len(examples)
    assert evaluated.tokens.nonzero().flatten().tolist() == long
    for row in long:
        batch = examples.batch([row])
        log_probs = (
            model.model(batch).logits[0].log_softmax(-1)[range(len(examples.targets[row]) + 1), batch.target_out[0]]
        )
        assert float(evaluated.log_probs[row]) == pytest.approx(float(log_probs[2:].detach().sum()), abs=1e-4)
    score = evaluated.perplexity
    assert score.value == pytest.approx(math.exp(-float(evaluated.log_probs.sum()) / int(evaluated.tokens.sum())))
    assert f"|from word:3|left out:{len(examples) - len(long)} of under 5 words|" in score.signature


def test_validation_skips_the_words_configured_in_the_recipe(model, examples):
    recipe = model.recipe.model_copy(update={"evaluation": EvaluationSettings(skip_words=2)})
    brief = validate(model._replace(recipe=recipe), examples, ["perplexity"])
    assert brief["perplexity"] == score_examples(model.model, examples, skip_words=2).perplexity.value
    with pytest.raises(CollectionError, match=r"expected tokens in the split, found none .*from word:31"):
        score_examples(model.model, examples, skip_words=30).perplexity  # noqa: B018


def test_exact_retrieval_is_in_float32(model, tiny, monkeypatch):
    monkeypatch.setattr("limner.retrieval.marginal.uses_bf16", lambda model: True)
    for exact, precision in ((False, "|bf16"), (True, "|fp32")):
        evaluation = evaluate([model], tiny, options=EvaluationOptions(metrics=("bleu1",), exact=exact))
        assert precision in signature(evaluation, "text_to_image_r1")
