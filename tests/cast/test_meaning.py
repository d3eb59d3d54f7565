from collections.abc import Sequence

import numpy as np
import pytest

from personae.cast.calibrate import Example
from personae.cast.gate import hashed
from personae.cast.meaning import MeaningRouter
from personae.cast.router import Router
from personae.characters.starter import starter
from personae.errors import UsageError
from personae.world.embedding import Vector

CAST = {name: starter(name) for name in ("sherlock-holmes", "alice", "sun-wukong")}
OTHER_WORDS = {
    "sleuthhound": "detective violin Baker Street Watson",
    "simian": "花果山 金箍棒 石猴",
}
NONSENSE = (
    "brillig", "tove", "wabe", "borogove", "rath", "jubjub", "manxome", "tulgey", "vorpal", "frabjous",
    "calloh", "gimble", "outgrabe", "uffish",
)  # fmt: skip
STRANGERS = [Example(kind="unknown", role=None, text=f"Fetch the {one}.") for one in NONSENSE]


class Thesaurus:
    """Hashed words, where two words that no card has mean some that a card has."""

    name = "thesaurus"
    dimension = 1024

    async def embed(self, texts: Sequence[str]) -> list[Vector]:
        kept = [[w.strip(".?") for w in t.split() if w not in {"Fetch", "the"}] for t in texts]
        said = [" ".join(OTHER_WORDS.get(word, word) for word in text) for text in kept]
        return [row.astype(np.float32) for row in hashed(said)]

    async def close(self) -> None: ...


async def router() -> MeaningRouter:
    return await MeaningRouter.made(Router.from_characters(CAST), Thesaurus(), STRANGERS)


@pytest.mark.parametrize(
    ("text", "role"),
    [("Fetch the sleuthhound.", "sherlock-holmes"), ("Fetch the simian.", "sun-wukong")],
)
async def test_what_other_words_mean_is_asked_about_and_not_accepted(text, role):
    assert Router.from_characters(CAST).route(text).decision == "reject"

    found = await (await router()).route(text)

    assert (found.decision, found.role) == ("ask", role)
    assert next(iter(found.weights)) == role
    assert sum(found.weights.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    "text", ["Play Alice.", "Play Napoleon Bonaparte.", "Play the consulting detective.", ""]
)
async def test_what_a_name_or_the_words_decide_stays(text):
    words = Router.from_characters(CAST)

    assert await (await router()).route(text) == words.route(text)


async def test_no_more_of_the_strangers_that_set_it_are_asked_about_than_stated():
    meaning = await router()
    asked = [(await meaning.route(e.text)).decision == "ask" for e in STRANGERS]

    assert sum(asked) <= 0.1 * len(asked)


async def test_too_few_strangers_for_the_rate_are_an_error():
    with pytest.raises(UsageError, match="too few"):
        await MeaningRouter.made(Router.from_characters(CAST), Thesaurus(), STRANGERS[:3])
