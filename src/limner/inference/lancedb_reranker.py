"""Re-ranking of results of LanceDB by log P(query | image), for users of LanceDB (extra `lancedb`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from limner.errors import MissingExtraError, SettingsError
from limner.inference.retriever import Retriever

if TYPE_CHECKING:
    from limner.data.collection import Collection

try:
    from lancedb.rerankers import Reranker
except ImportError:
    raise MissingExtraError("re-ranking results of LanceDB", "lancedb") from None

SCORE = "_relevance_score"
"""Column of the scores, as LanceDB names it."""


class LanguageModelReranker(Reranker):  # type: ignore[misc]  # LanceDB is not typed
    """Order results by the probability of the query given their images.

    Results of a vector search, a full-text search or both name items of a collection; the features of these items are
    read from its tables. Give it to LanceDB: `table.search(vector).rerank(reranker, query_string="a red wall")`.
    """

    def __init__(
        self, retriever: Retriever, collection: Collection, column: str = "id", return_score: str = "relevance"
    ) -> None:
        """Create a reranker.

        Args:
            retriever: retriever of a captioning model.
            collection: collection with the features of the images.
            column: column of the results with the ids of the items.
            return_score: 'relevance' for log P(query | image) alone, 'all' for the scores of the searches too.
        """
        super().__init__(return_score)
        self.retriever, self.collection, self.column = retriever, collection, column

    def rerank_vector(self, query: str, vector_results: pa.Table) -> pa.Table:
        """Order the results of a vector search."""
        return self._rerank(query, vector_results, "_distance")

    def rerank_fts(self, query: str, fts_results: pa.Table) -> pa.Table:
        """Order the results of a full-text search."""
        return self._rerank(query, fts_results, "_score")

    def rerank_hybrid(self, query: str, vector_results: pa.Table, fts_results: pa.Table) -> pa.Table:
        """Order the results of both searches, each once."""
        if self.score == "all":
            return self._rerank(query, self._merge_and_keep_scores(vector_results, fts_results))
        return self._keep_relevance_score(self._rerank(query, self.merge_results(vector_results, fts_results)))

    def _rerank(self, query: str, results: pa.Table, replaced: str = "") -> pa.Table:
        """Append the scores and sort by them; the column `replaced` is dropped unless all scores are returned.

        Raises:
            SettingsError: the results have no column with ids.
        """
        if self.column not in results.column_names:
            raise SettingsError(
                f"expected a column '{self.column}' with the ids of items, found {', '.join(results.column_names)}; "
                "give the reranker the name of the column, or select it in the search"
            )
        scores = self.retriever.score_images(query, self.collection, results[self.column].to_pylist())
        if self.score == "relevance" and replaced in results.column_names:
            results = results.drop_columns([replaced])
        ranked = results.append_column(SCORE, pa.array(scores, pa.float32()))
        return ranked.sort_by([(SCORE, "descending")])
