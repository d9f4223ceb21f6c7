"""The phrase-based model in training, translation and evaluation, and what it refuses."""

import json
import random
import shutil
import sys

import pytest
import torch
from test_smt_language_model import score
from typer.testing import CliRunner

from limner.apps.cli import app
from limner.apps.distributed.sentences import SENTENCES
from limner.apps.export.folder import export_language_model
from limner.apps.server.models import load_served_models
from limner.apps.server.settings import ServerSettings
from limner.data.collection import Collection, write_items
from limner.data.dataset import Examples
from limner.data.examples import Item, ItemSentence
from limner.decoding.scoring import score_examples
from limner.decoding.settings import DecodingSettings
from limner.errors import RunError, SettingsError, TrainingError
from limner.evaluation.evaluate import evaluate
from limner.inference.generate import generate
from limner.inference.translator import Translator
from limner.runs.evaluations import Evaluation
from limner.runs.recipe import load_recipe
from limner.runs.trained_model import load_trained_model
from limner.storage.json_text import to_json
from limner.storage.tensors import load_tensors
from limner.text.vocab import SPECIAL_TOKENS
from limner.training.loop import train

NOUNS = {"dog": "Hund", "tomcat": "Kater", "man": "Mann", "boy": "Junge"}
ADJECTIVES = {"big": "großer", "small": "kleiner", "red": "roter"}
VERBS = {"runs": "läuft", "sleeps": "schläft", "sings": "singt"}
TIMES = {"today": "heute", "outside": "draußen"}


def sentence_pair(rng):
    """An English sentence, and its German translation in another order."""
    noun, adjective, verb, time = (rng.choice(list(words)) for words in (NOUNS, ADJECTIVES, VERBS, TIMES))
    return (
        f"a {adjective} {noun} {verb} {time} .",
        f"{TIMES[time]} {VERBS[verb]} ein {ADJECTIVES[adjective]} {NOUNS[noun]} .",
    )


def pair_item(number, split, english, *german):
    """An item of an English sentence and its German translations."""
    translations = (ItemSentence("de", text, 0) for text in german)
    return Item(f"{split}{number}", split, sentences=(ItemSentence("en", english, 0), *translations))


def stored(folder, items):
    write_items(folder, items)
    return Collection.open(folder)


@pytest.fixture(scope="module")
def collection(tmp_path_factory):
    rng, splits = random.Random(3), ["train"] * 150 + ["val"] * 12 + ["test"] * 12
    items = [pair_item(number, split, *sentence_pair(rng)) for number, split in enumerate(splits)]
    return stored(tmp_path_factory.mktemp("data") / "collection", items)


@pytest.fixture(scope="module")
def run(collection, tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "pbsmt"
    recipe = load_recipe("calixto2017/pbsmt", ["model.tuning.iterations=2", "decoding.beam_size=20"])
    return train(recipe, collection, out)


def test_reordered_sentences_are_translated(run):
    ((best, *_),) = Translator.load(run).translate(["a small man sings outside ."])
    assert best.text == "draußen singt ein kleiner Mann."
    assert best.tokenised(load_trained_model(run).tokenizer) == "draußen singt ein kleiner Mann ."


def test_the_test_split_is_translated_without_an_error(run, collection):
    scores = {score.name: score.value for score in evaluate([load_trained_model(run)], collection).scores}
    assert scores["bleu4"] == pytest.approx(100)
    assert "perplexity" not in scores


def test_an_evaluation_without_a_metric_is_one_error_and_keeps_the_sentences(run, collection, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pycocoevalcap.meteor.meteor", None)
    copy = shutil.copytree(run, tmp_path / "run")
    arguments = ["evaluate", "--model", str(copy), "--collection", str(collection.path), "--metric", "meteor"]
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, SettingsError)
    assert "none of the metrics can be computed" in str(result.exception)
    (kept,) = (copy / "evaluation").glob("*.json")
    assert Evaluation.load(kept).items[0].hypothesis


def test_n_best_translations_differ_and_descend(run):
    (found,) = Translator.load(run).translate(["a red dog runs today ."], n_best=5)
    assert len({one.tokens for one in found}) == len(found) > 1
    weights = dict(load_trained_model(run).config.provenance["feature_weights"])
    for one in found:
        assert sum(weights[name] * value for name, value in one.features) == pytest.approx(one.score)
    assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)


def test_a_sentence_without_words_has_the_features_of_the_others(run):
    full, empty = Translator.load(run).translate(["a red dog .", ""], n_best=2)
    assert [name for name, _ in empty[0].features] == [name for name, _ in full[0].features]
    assert (empty[0].text, {value for _, value in empty[0].features}) == ("", {0.0})


def test_the_explanation_spells_copied_words(run):
    translator, sentences = Translator.load(run), ["a red Zeppelin sings ."]
    ((best,),) = translator.translate(sentences)
    (explanation,) = translator.explain(sentences, [best])
    assert "Zeppelin" in explanation.target and " ".join(explanation.target) == best.tokenised(
        load_trained_model(run).tokenizer
    )


def test_the_alignment_shows_which_word_translates_which(run):
    translator, sentences = Translator.load(run), ["a small man sings outside ."]
    ((best,),) = translator.translate(sentences)
    (explanation,) = translator.explain(sentences, [best])
    aligned = {
        explanation.target[row]: explanation.source[int(weights.argmax())]
        for row, weights in enumerate(explanation.alignment)
    }
    assert explanation.target == ("draußen", "singt", "ein", "kleiner", "Mann", ".")  # without the end of the sentence
    assert aligned["draußen"] == "outside"
    assert aligned["Mann"] == "man"
    assert explanation.words == explanation.target
    covered = sorted(position for (start, end), _ in explanation.phrases for position in range(start, end))
    assert covered == list(range(6))  # each source word is in one phrase


def test_every_translation_that_was_found_is_explained_by_its_own_phrases(run):
    """Also one of other stacks than those of the recipe, or one of the last of many; a search would find another."""
    translator, sentences = Translator.load(run), ["a red dog runs today ."]
    (found,) = translator.translate(sentences, beam_size=1000, n_best=500)
    for one in (found[0], found[-1]):
        (explanation,) = translator.explain(sentences, [one])
        ends = [target for _, (_, target) in explanation.phrases]
        assert ends == sorted(ends) and ends[-1] == len(one.tokens) == len(explanation.alignment)
        assert len(explanation.phrases) == dict(one.features)["phrases"]
    with pytest.raises(SettingsError, match="not among the"):
        translator.explain(sentences, [found[-1]._replace(derivation=None)])


def test_a_training_that_failed_before_it_saved_anything_starts_again(collection, tmp_path):
    changes, file = ["model.tuning.method=none", "model.word_alignment=hmm"], tmp_path / "no.arpa"
    wrong = load_recipe("calixto2017/pbsmt", [*changes, f"model.language_model_file={file}"])
    with pytest.raises(RunError, match=r"no\.arpa"):
        train(wrong, collection, tmp_path / "run")
    recipe = load_recipe("calixto2017/pbsmt", changes)
    run = train(recipe, collection, tmp_path / "run")
    assert load_trained_model(run).recipe.model.language_model_file is None
    with pytest.raises(RunError, match="already contains a run"):
        train(recipe, collection, run)


def test_training_twice_gives_the_same_tables_and_reports_its_parts(run, collection, tmp_path):
    recipe, reported = load_recipe("calixto2017/pbsmt", ["model.tuning.iterations=2", "decoding.beam_size=20"]), []
    out = train(recipe, collection, tmp_path / "again", on_progress=lambda now: reported.append((now.part, now.steps)))
    again = load_tensors(out / "model.safetensors")
    assert all(torch.equal(values, again[name]) for name, values in load_tensors(run / "model.safetensors").items())
    assert [part for part, _ in reported][:3] == ["language model", "word alignments and phrase pairs", "tuning"]
    assert reported[-1][0].startswith("tuning, BLEU ") and reported[-1][1] in (1, 2)


def test_validation_bleu_of_the_tuning_is_recorded(run):
    facts = load_trained_model(run).config.provenance
    assert [facts["validation_bleu4"], max(facts["tuning_bleu"])] == pytest.approx([100, 100])


@pytest.mark.parametrize(
    "assignment", ["training.metric=perplexity", "training.metrics=[perplexity]", "training.train_on_val_epochs=1"]
)
def test_what_needs_probabilities_is_refused(collection, tmp_path, assignment):
    with pytest.raises(SettingsError, match="perplexity"):
        train(load_recipe("calixto2017/pbsmt", [assignment]), collection, tmp_path / "run")


def test_an_ensemble_is_refused(run):
    with pytest.raises(RunError, match="ensemble"):
        Translator.load(run, run).translate(["a dog ."])


def test_the_service_refuses_it(run):
    with pytest.raises(SettingsError, match="'phrase_based' has no probabilities of tokens, which the service gives"):
        load_served_models(ServerSettings(models=(str(run),)))


def test_given_sentences_have_no_probability(run, collection):
    trained = load_trained_model(run)
    examples = Examples.of_split(collection, "test", trained.target, None, source=trained.source)
    with pytest.raises(SettingsError, match="probabilities"):
        score_examples(trained.model, examples)


def test_the_language_model_is_written_and_used_by_another_training(run, collection, tmp_path):
    file = tmp_path / "lm.arpa"
    model = load_trained_model(run).model.language_model()
    assert export_language_model(run, file) == len(model.firsts)
    untuned = ["model.tuning.method=none", f"model.language_model_file={file}"]
    other = train(load_recipe("calixto2017/pbsmt", untuned), collection, tmp_path / "other")
    again = load_trained_model(other).model.language_model()
    sentence = [7, 5, 9]
    assert score(again, sentence) == pytest.approx(score(model, sentence), abs=1e-4)
    with pytest.raises(SettingsError, match=r"lm\.arpa: .* found up to 5; set model\.order=5"):
        train(load_recipe("calixto2017/pbsmt", [*untuned, "model.order=3"]), collection, tmp_path / "third")
    with pytest.raises(SettingsError, match="exists"):
        export_language_model(run, file)
    with pytest.raises(SettingsError, match="is inside the run"):
        export_language_model(run, run / "lm.arpa")


def test_more_sentences_in_the_language_model_and_back_translated_pairs(tmp_path, caplog):
    """Pairs, a German sentence without a translation, and one with a generated English sentence."""
    written = (ItemSentence("en", "a dog runs .", 0), ItemSentence("de", "ein Hund läuft .", 0))
    alone = ItemSentence("de", "ein Kater schläft .")
    generated = (
        ItemSentence("de", "ein Junge singt .", 1),
        ItemSentence("en", "a boy sings .", 1, generated_by="a model"),
    )
    sentences = (*written, alone, *generated)
    rng, items = random.Random(5), [Item("val", "val", sentences=written)]
    for number in range(20):
        english, german = sentence_pair(rng)
        pair = (ItemSentence("en", english, 2), ItemSentence("de", german, 2))
        items.append(Item(f"train{number}", "train", sentences=(*sentences, *pair)))
    collection, facts = stored(tmp_path / "c", items), {}
    for name in ("pbsmt", "pbsmt-lm", "pbsmt-concat"):
        recipe = load_recipe(f"calixto2017/{name}", ["model.tuning.method=none", "data.test=val"])
        folder = train(recipe, collection, tmp_path / name)
        facts[name] = load_trained_model(folder).config.provenance
    sizes = {name: (one["phrase_pairs"], one["language_model_ngrams"]) for name, one in facts.items()}
    assert sizes["pbsmt-lm"][0] == sizes["pbsmt"][0] < sizes["pbsmt-concat"][0]
    assert sizes["pbsmt"][1] < sizes["pbsmt-lm"][1]
    assert sizes["pbsmt"][1] < sizes["pbsmt-concat"][1]
    assert "model.language_model=all" not in caplog.text


def test_a_language_model_of_all_sentences_without_more_sentences_is_warned_of(collection, tmp_path, caplog):
    train(load_recipe("calixto2017/pbsmt-lm", ["model.tuning.method=none"]), collection, tmp_path / "run")
    assert "'train' has no sentences in 'de' besides the pairs" in caplog.text


def test_pairs_without_aligned_words_are_refused(tmp_path):
    items = [pair_item(0, split, "a dog runs .", "ein Hund läuft .") for split in ("train", "val")]
    recipe = load_recipe("calixto2017/pbsmt", ["model.word_alignment=hmm", "data.test=val"])
    with pytest.raises(TrainingError, match="no words of the 1 sentence pairs could be aligned"):
        train(recipe, stored(tmp_path / "c", items), tmp_path / "run")


def test_unknown_words_are_kept(run, caplog):
    ((best,),) = Translator.load(run).translate(["a small Zeppelin sings outside ."])
    assert "Zeppelin" in best.text
    assert "'Zeppelin'; they are copied into the translation" in caplog.text


def test_copied_words_of_the_target_vocabulary_have_their_own_tokens(run):
    ((best,),) = Translator.load(run).translate(["a small Hund sings outside ."])
    assert SPECIAL_TOKENS.unk not in best.tokens
    assert best.text.count("Hund") == 1


def test_no_perplexity_is_noted_where_there_is_none(tmp_path):
    rng, items = random.Random(4), []
    for number, split in enumerate(["train"] * 30 + ["val", "test"]):
        english, german = sentence_pair(rng)
        added = "" if split == "train" else " Zeppelin"  # outside the vocabulary
        items.append(pair_item(number, split, english, german + added))
    collection = stored(tmp_path / "collection", items)
    out = train(load_recipe("calixto2017/pbsmt", ["model.tuning.method=none"]), collection, tmp_path / "run")
    trained = load_trained_model(out)
    assert "<unk>" not in str(trained.config.provenance["notes"])
    assert "<unk>" not in str(evaluate([trained], collection).notes)


def test_a_run_to_start_from_is_refused(run, collection, tmp_path):
    with pytest.raises(SettingsError, match=f"--init {run}: .*; leave --init out"):
        train(load_recipe("calixto2017/pbsmt", []), collection, tmp_path / "again", init=run)


@pytest.fixture(scope="module")
def rare(tmp_path_factory):
    """Pairs with names; 'Zeppelin' is once in both languages."""
    rng, items = random.Random(5), []
    for number, split in enumerate(["train"] * 60 + ["val"] * 10):
        english, german = sentence_pair(rng)
        name = "Bob" if number % 3 == 0 else {1: "Zeppelin", 62: "Luftschiff"}.get(number, "Anna")
        items.append(pair_item(number, split, f"{name} : {english}", f"{name} : {german}"))
    return stored(tmp_path_factory.mktemp("rare") / "collection", items)


def test_rare_words_that_are_no_entries_are_copied(rare, tmp_path):
    changes = ["text.min_count=3", "source_text.min_count=3", "model.tuning.iterations=2", "decoding.beam_size=20"]
    out = train(load_recipe("calixto2017/pbsmt", changes), rare, tmp_path / "run")
    assert SPECIAL_TOKENS.unk not in load_trained_model(out).model.get_buffer("words")
    ((one,), (two,)) = Translator.load(out).translate(
        ["Zeppelin : a small man sings outside .", "Qux : a big dog runs ."]
    )
    assert "Zeppelin" in one.text and "Qux" in two.text


def test_unknown_characters_of_subwords_are_copied(rare, tmp_path, caplog):
    changes = ["text.level=bpe", "text.max_size=120", "model.tuning.method=none", "decoding.beam_size=20"]
    out = train(load_recipe("calixto2017/pbsmt", changes), rare, tmp_path / "run")
    ((best,),) = Translator.load(out).translate(["Anna : Xýx sings ."])
    assert best.text.count("Xýx") == 1 and "<unk>" not in best.text
    assert "'Xýx'; their unknown characters are copied into the translation" in caplog.text


def test_words_of_the_tuning_change_no_language_model(tmp_path):
    recipe = load_recipe("calixto2017/pbsmt-lm", ["model.tuning.method=none", "model.word_alignment=ibm1"])
    models = []
    for number, added in enumerate(("", " eins zwei drei vier fünf")):
        rng, alone = random.Random(4), Item("mono", "train", sentences=(ItemSentence("de", "ein neuer Satz .", 0),))
        items = [alone, *(pair_item(k, "train", *sentence_pair(rng)) for k in range(30))]
        english, german = sentence_pair(rng)
        items.append(pair_item(30, "val", english, german + added))
        out = train(recipe, stored(tmp_path / f"collection{number}", items), tmp_path / f"run{number}")
        models.append(load_trained_model(out).model.language_model())
    assert all((one == other).all() for one, other in zip(*(model[2:] for model in models), strict=True))


def test_an_error_in_the_validation_leaves_the_estimated_model(collection, tmp_path, monkeypatch):
    def fail(*args, **kwargs):
        raise ValueError("an error")

    monkeypatch.setattr("limner.training.translation_tables.validate", fail)
    recipe = load_recipe("calixto2017/pbsmt", ["model.tuning.method=none", "model.word_alignment=ibm1"])
    with pytest.raises(ValueError, match="an error"):
        train(recipe, collection, tmp_path / "run")
    ((best, *_),) = Translator.load(tmp_path / "run").translate(["a small man sings outside ."])
    assert best.text


BLANK = "\u200b"
"""A sentence without words."""


def with_blank_sentences(folder, references):
    """60 pairs, two without words on a side, and a validation split whose third item has the given references."""
    rng, items = random.Random(6), []
    for number, split in enumerate(["train"] * 60 + ["val"] * 12):
        english, german = sentence_pair(rng)
        german = BLANK if number == 5 else german
        texts = references if number == 62 else [german]
        items.append(pair_item(number, split, BLANK if number in (7, 65) else english, *texts))
    return stored(folder, items)


def test_sentences_without_words_are_counted(tmp_path, caplog):
    collection = with_blank_sentences(tmp_path / "c", [BLANK, "ein Hund singt heute ."])
    recipe = load_recipe("calixto2017/pbsmt", ["model.tuning.iterations=1", "model.word_alignment=ibm1"])
    notes = load_trained_model(train(recipe, collection, tmp_path / "run")).config.provenance["notes"]
    expected = [
        "split 'train': skipped 2 pairs with a side without words",
        "split 'val': skipped 1 source sentences without words, in the tuning",
    ]
    assert notes == expected
    assert all(line in caplog.text for line in expected)


def test_a_validation_sentence_without_a_reference_is_named_before_the_estimation(tmp_path, monkeypatch):
    monkeypatch.setattr("limner.smt.extraction.align", None)  # is not reached
    collection = with_blank_sentences(tmp_path / "c", [BLANK, BLANK])
    with pytest.raises(TrainingError, match="item 'val62' of split 'val' has no reference in 'de' with words"):
        train(load_recipe("calixto2017/pbsmt", []), collection, tmp_path / "run")


def test_a_journal_keeps_copied_words(run):
    found = [load_trained_model(run)]
    inputs = [Translator.load(run).source_of(None, "a small Zeppelin sings .")]
    (n_best,) = generate(found, inputs, None, DecodingSettings())
    assert n_best[0].copied and SENTENCES.validate_python(json.loads(to_json(n_best))) == n_best
