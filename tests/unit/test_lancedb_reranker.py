"""Results of LanceDB in the order of log P(query | image)."""

import pytest

import limner
from limner.errors import CollectionError, SettingsError
from limner.training.loop import train

lancedb = pytest.importorskip("lancedb", reason="the extra 'lancedb' is not installed")
FTS = pytest.importorskip("lancedb.index").FTS
QUERY = "a red wall"


@pytest.fixture(scope="module")
def retriever(tiny, recipe_of, tmp_path_factory):
    run = train(recipe_of("colour", epochs=2, validate_every=2), tiny, tmp_path_factory.mktemp("reranker") / "mrnn")
    return limner.Retriever.load(run, encode_images=False)


@pytest.fixture
def table(tiny, tmp_path):
    """A table of LanceDB with a vector and a sentence of each image."""
    items = list(tiny.items("test"))
    rows = [{"id": one.id, "text": one.texts("en")[0], "vector": [float(k), 1.0]} for k, one in enumerate(items)]
    return lancedb.connect(tmp_path / "db").create_table("images", rows)


@pytest.fixture
def expected(retriever, tiny):
    return retriever.search_images(QUERY, tiny, split="test", count=8).results


@pytest.fixture
def reranker(retriever, tiny):
    from limner.inference.lancedb_reranker import LanguageModelReranker

    return LanguageModelReranker(retriever, tiny)


def test_results_of_a_vector_search_are_ranked_by_the_model(reranker, table, expected):
    found = table.search([0.0, 1.0]).limit(8).rerank(reranker, query_string=QUERY).to_list()
    assert [one["id"] for one in found] == [one.id for one in expected]
    assert [one["_relevance_score"] for one in found] == pytest.approx([one.score for one in expected], abs=1e-4)
    assert "_distance" not in found[0]


def test_only_candidates_are_ranked(reranker, table, expected):
    found = table.search([0.0, 1.0]).limit(3).rerank(reranker, query_string=QUERY).to_list()
    candidates = {one["id"] for one in table.search([0.0, 1.0]).limit(3).to_list()}
    assert [one["id"] for one in found] == [one.id for one in expected if one.id in candidates]


def test_results_of_two_searches_are_merged(reranker, table):
    table.create_index("text", config=FTS())
    texts = table.search(query_type="hybrid").vector([0.0, 1.0]).text("wall").limit(5)
    found = texts.rerank(reranker).to_list()
    scores = [one["_relevance_score"] for one in found]
    assert scores == sorted(scores, reverse=True)
    assert len({one["id"] for one in found}) == len(found)


def test_results_without_ids_are_refused(retriever, tiny, table):
    from limner.inference.lancedb_reranker import LanguageModelReranker

    reranker = LanguageModelReranker(retriever, tiny, column="item")
    with pytest.raises(SettingsError, match="expected a column 'item' with the ids of items, found id"):
        table.search([0.0, 1.0]).limit(3).rerank(reranker, query_string=QUERY).to_list()


def test_ids_without_features_are_named(retriever, tiny):
    with pytest.raises(CollectionError, match="no features of item 'elsewhere'"):
        retriever.score_images(QUERY, tiny, ["elsewhere"])
