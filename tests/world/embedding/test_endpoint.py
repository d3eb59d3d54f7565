from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from personae.errors import (
    AuthenticationError,
    BadRequestError,
    RateLimitError,
    ServerError,
    TransportError,
)
from personae.world.embedding.endpoint import BATCH, EndpointEmbedder
from tests.models.stub import Answer, Request, StubEndpoint, rejection

Connect = Callable[[], EndpointEmbedder]


@pytest.fixture
async def connect(endpoint: StubEndpoint) -> AsyncIterator[Connect]:
    made: list[EndpointEmbedder] = []

    def make() -> EndpointEmbedder:
        made.append(EndpointEmbedder(endpoint.model_id, timeout=5, first_delay=0.001))
        return made[-1]

    yield make
    for embedder in made:
        await embedder.close()


def vectors(*rows: object, start: int = 0) -> Answer:
    return Answer({"data": [{"index": start + i, "embedding": row} for i, row in enumerate(rows)]})


def by_length(request: Request) -> Answer:
    """A text of n characters points to (n, 1)."""
    return vectors(*([len(text), 1] for text in request.body["input"]))


async def test_texts_go_to_the_embeddings_path_and_vectors_come_back_in_order(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(
        Answer({"data": [{"index": 1, "embedding": [0, 5]}, {"index": 0, "embedding": [3, 4]}]})
    )
    embedder = connect()
    assert embedder.dimension is None
    one, other = await embedder.embed(["风", "rain"])
    assert endpoint.requests[0].path == "/v1/embeddings"
    assert endpoint.last == {"model": "tiny", "input": ["风", "rain"], "encoding_format": "float"}
    assert one.tolist() == pytest.approx([0.6, 0.8])
    assert other.tolist() == [0, 1]
    assert embedder.dimension == 2


async def test_many_texts_go_in_several_requests(endpoint: StubEndpoint, connect: Connect) -> None:
    endpoint.ask(by_length)
    texts = ["x" * n for n in range(1, 2 * BATCH + 3)]
    made = await connect().embed(texts)
    assert sorted(len(r.body["input"]) for r in endpoint.requests) == [2, BATCH, BATCH]
    assert [round(v[0] / v[1]) for v in made] == [len(t) for t in texts]


async def test_no_text_is_no_request(endpoint: StubEndpoint, connect: Connect) -> None:
    assert await connect().embed([]) == []
    assert endpoint.requests == []


async def test_a_passing_failure_is_tried_again(endpoint: StubEndpoint, connect: Connect) -> None:
    endpoint.play(
        Answer({"error": {"message": "slow down"}}, status=429, headers={"Retry-After": "0"}),
        Answer({"error": {"message": "oops"}}, status=503),
        vectors([1, 0]),
    )
    assert len(await connect().embed(["a"])) == 1
    assert len(endpoint.requests) == 3


@pytest.mark.parametrize(
    ("answer", "error", "tries"),
    [
        (Answer({"error": {"message": "slow down"}}, status=429), RateLimitError, 5),
        (Answer({"error": {"message": "no such key"}}, status=401), AuthenticationError, 1),
        (rejection("this model does not embed"), BadRequestError, 1),
    ],
)
async def test_what_stays_wrong_is_raised(
    endpoint: StubEndpoint,
    connect: Connect,
    answer: Answer,
    error: type[TransportError],
    tries: int,
) -> None:
    endpoint.play(answer)
    with pytest.raises(error):
        await connect().embed(["a"])
    assert len(endpoint.requests) == tries


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "without vectors"),
        ({"data": "x"}, "without vectors"),
        ({"data": [{"index": 0, "embedding": [1, 0]}]}, "1 vectors for 2 texts"),
        ({"data": [{"index": 0, "embedding": [1]}] * 2}, "numbered them otherwise"),
        ({"data": [{"index": 7}, {"index": 0}]}, "numbered them otherwise"),
        ({"data": [{"index": True, "embedding": [1]}, {"index": 0}]}, "numbered them otherwise"),
        ({"data": [None, 3]}, "numbered them otherwise"),
        ({"data": [{"index": i, "embedding": [1] * (i + 1)} for i in range(2)]}, "lengths"),
        ({"data": [{"index": i, "embedding": [0, 0]} for i in range(2)]}, "direction"),
    ],
)
async def test_a_malformed_answer_is_a_server_error(
    endpoint: StubEndpoint, connect: Connect, body: object, says: str
) -> None:
    endpoint.play(Answer(body))
    with pytest.raises(ServerError, match=says):
        await connect().embed(["a", "b"])


async def test_vectors_of_another_length_than_before_are_refused(
    endpoint: StubEndpoint, connect: Connect
) -> None:
    endpoint.play(vectors([1, 0]), vectors([1, 0, 0]))
    embedder = connect()
    await embedder.embed(["a"])
    with pytest.raises(ServerError, match="different lengths"):
        await embedder.embed(["b"])
