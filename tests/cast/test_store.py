"""A cast on disk: read carefully, written whole or not at all. Needs no torch, but for `attach`."""

import json
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from personae.cast.gate import PaperRouter
from personae.cast.store import attach, file_name, read_cast, write_cast
from personae.characters.starter import starter
from personae.errors import InputError, OutputError, UsageError
from personae.records import Character
from personae.records.cast import BaseModelRef, Block, CastCharacter, DataSource

BASE = BaseModelRef(id="somewhere", sha256="0" * 64, architecture="llama")
HOLMES, ALICE = starter("sherlock-holmes"), starter("alice")
MODULES = {"model.layers.0.q": (6, 8), "model.layers.0.v": (6, 4)}


def blocks_of(slots: int = 3, rank: int = 2, seed: int = 0) -> dict[str, np.ndarray]:
    drawn = np.random.default_rng(seed)
    made = {}
    for module, (width, height) in MODULES.items():
        made[f"A.{module}"] = drawn.normal(size=(slots, rank, width)).astype(np.float32)
        made[f"B.{module}"] = drawn.normal(size=(slots, height, rank)).astype(np.float32)
    return made


def fields(**other: Any) -> dict[str, Any]:
    return {
        "base": BASE,
        "rank": 2,
        "alpha": 4.0,
        "blocks": [
            Block(name="shared", data=(DataSource(source="rows.jsonl", licence="MIT", rows=9),)),
            Block(name="Sherlock Holmes", tokens=120, steps=3, loss=(3.5, 2.25)),
            Block(name="Alice"),
        ],
        "characters": [
            CastCharacter(name="Sherlock Holmes", weights={"shared": 1, "Sherlock Holmes": 1}),
            CastCharacter(name="Alice", aliases=("Liddell",), weights={"shared": 1, "Alice": 0.5}),
        ],
        "tensors": blocks_of(),
        "cards": {"Sherlock Holmes": HOLMES},
        **other,
    }


@pytest.fixture
def cast_dir(tmp_path: Path) -> Path:
    write_cast(tmp_path / "cast", **fields(seed=7, mode="speaker"))
    return tmp_path / "cast"


def edit(path: Path, change: Callable[[Any], None]) -> None:
    value = json.loads(path.read_text("utf-8"))
    change(value)
    path.write_text(json.dumps(value), "utf-8")


def put_blocks(cast_dir: Path, raw: bytes) -> None:
    """Blocks with a manifest that vouches for them."""
    import hashlib

    (cast_dir / "blocks.safetensors").write_bytes(raw)
    digest = hashlib.sha256(raw).hexdigest()
    edit(cast_dir / "cast.json", lambda m: m.update(blocks_sha256=digest))


def saved(tensors: dict[str, np.ndarray]) -> bytes:
    from safetensors.numpy import save

    return save(tensors)


def test_what_was_written_is_read_again_bit_by_bit(cast_dir: Path) -> None:
    cast = read_cast(cast_dir)

    assert cast.names == ("Sherlock Holmes", "Alice")
    for name, tensor in blocks_of().items():
        assert np.array_equal(cast.tensors[name], tensor)
    manifest = cast.manifest
    assert manifest.targets == tuple(MODULES)
    assert (manifest.rank, manifest.alpha, manifest.seed, manifest.mode) == (2, 4.0, 7, "speaker")
    assert manifest.blocks == tuple(fields()["blocks"])
    assert cast.cards == {"Sherlock Holmes": HOLMES}
    assert cast.character("Sherlock Holmes").card == "cards/Sherlock-Holmes.json"
    assert cast.character("Alice").card is None


def test_a_cast_routes_by_its_cards_and_by_the_bare_names_of_those_without(cast_dir: Path) -> None:
    cast = read_cast(cast_dir)

    assert cast.route("Play the consulting detective of Baker Street").role == "Sherlock Holmes"
    assert cast.route("Now be Liddell, please").role == "Alice"
    assert cast.gate is None


def test_under_the_papers_protocol_the_gate_of_the_cast_routes(tmp_path: Path) -> None:
    cards = {"Sherlock Holmes": HOLMES, "Alice": ALICE}
    gate = PaperRouter.from_characters(cards)
    cast = write_cast(tmp_path / "c", **fields(protocol="paper", cards=cards, gate=gate))

    stranger = cast.route("Play Napoleon Bonaparte")
    assert (stranger.decision, stranger.role) == (
        "accept",
        gate.route("Play Napoleon Bonaparte").role,
    )
    assert cast.router.route("Play Napoleon Bonaparte").decision != "accept"

    again = write_cast(tmp_path / "c", **fields())
    assert again.gate is None
    assert not (tmp_path / "c" / "gate.json").exists()


def test_an_unknown_character_is_named_beside_those_there_are(cast_dir: Path) -> None:
    with pytest.raises(UsageError, match=r"'Watson'; there are Sherlock Holmes, Alice"):
        read_cast(cast_dir).character("Watson")


def test_reading_a_cast_needs_no_torch(cast_dir: Path) -> None:
    code = (
        "import sys; from personae.cast.store import read_cast; "
        f"read_cast({str(cast_dir)!r}); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "False"


# Hostile and broken ------------------------------------------------------------------------------


@pytest.mark.parametrize("package", ["safetensors", "filelock"])
def test_what_is_not_installed_is_said_with_how_to_get_it(
    cast_dir: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UsageError, match=rf"needs {package}: pip install 'personae\[train\]'"):
        write_cast(cast_dir, **fields())
    if package == "safetensors":
        with pytest.raises(UsageError, match=rf"needs {package}"):
            read_cast(cast_dir)


def test_a_directory_without_a_cast_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"holds no cast. Give the directory that"):
        read_cast(tmp_path)


def test_a_training_that_is_not_finished_says_how_to_go_on(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "plan.json").write_text("{}")
    with pytest.raises(InputError, match=r"not finished. Give the same `personae cast train` aga"):
        read_cast(tmp_path)


def test_who_runs_the_blocks_elsewhere_reads_all_but_them(cast_dir: Path) -> None:
    whole = read_cast(cast_dir)
    (cast_dir / "blocks.safetensors").unlink()
    found = read_cast(cast_dir, blocks=False)
    assert found.tensors == {}
    assert (found.manifest, found.cards) == (whole.manifest, whole.cards)
    assert found.router.to_dict() == whole.router.to_dict()
    with pytest.raises(InputError):
        read_cast(cast_dir)


def test_other_blocks_than_the_manifest_describes_are_refused(cast_dir: Path) -> None:
    file = cast_dir / "blocks.safetensors"
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)

    with pytest.raises(InputError, match=r"blocks.safetensors: these are not the blocks .* Put"):
        read_cast(cast_dir)


@pytest.mark.parametrize("keep", [0, 7, 200, -4])
def test_blocks_that_end_early_are_refused(cast_dir: Path, keep: int) -> None:
    put_blocks(cast_dir, saved(blocks_of())[:keep])

    with pytest.raises(InputError, match="no whole safetensors file"):
        read_cast(cast_dir)


def test_a_header_that_claims_more_than_the_file_holds_is_refused(cast_dir: Path) -> None:
    header = json.dumps({"A.x": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 1 << 42]}})
    put_blocks(cast_dir, struct.pack("<Q", len(header)) + header.encode())

    with pytest.raises(InputError, match="no whole safetensors file"):
        read_cast(cast_dir)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_block_with_a_value_that_is_no_number_is_refused(cast_dir: Path, value: float) -> None:
    tensors = blocks_of()
    tensors["B.model.layers.0.v"][1, 2, 0] = value
    put_blocks(cast_dir, saved(tensors))

    with pytest.raises(InputError, match=r"B.model.layers.0.v: it holds values that are no"):
        read_cast(cast_dir)
    with pytest.raises(InputError, match="no numbers"):
        write_cast(cast_dir, **fields(tensors=tensors))


def test_blocks_are_float32_and_nothing_else(cast_dir: Path) -> None:
    put_blocks(cast_dir, saved({k: v.astype(np.float16) for k, v in blocks_of().items()}))

    with pytest.raises(InputError, match="of type F16, and blocks are F32"):
        read_cast(cast_dir)
    with pytest.raises(InputError, match="float64, not float32"):
        write_cast(cast_dir, **fields(tensors={k: v.astype(float) for k, v in blocks_of().items()}))


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        (blocks_of(slots=2), r"A.model.layers.0.q: its shape is \[2, 2, 6\].* \[3, 2, in\]"),
        (blocks_of(rank=4), r"its shape is \[3, 4, 6\]"),
        (
            {k: (v[0] if k == "B.model.layers.0.v" else v) for k, v in blocks_of().items()},
            r"B.model.layers.0.v: its shape is \[4, 2\], and it must be \[3, out, 2\]",
        ),
        ({**blocks_of(), "A.extra": np.zeros((3, 2, 1), np.float32)}, "besides 'A.extra'"),
        ({k: v for k, v in blocks_of().items() if k != "A.model.layers.0.q"}, "lacks 'A.model"),
    ],
)
def test_blocks_that_do_not_fit_the_manifest_are_refused(
    cast_dir: Path, tensors: dict[str, np.ndarray], said: str
) -> None:
    put_blocks(cast_dir, saved(tensors))

    with pytest.raises(InputError, match=said):
        read_cast(cast_dir)


@pytest.mark.parametrize(
    "card",
    ["../secret.json", "cards/../../secret.json", "/etc/passwd", "cards/a/b.json", "x.json",
     "cards", "cards/", "cards/..", "cards/..\\secret.json", ""],
)  # fmt: skip
def test_a_card_outside_of_the_cards_folder_is_not_read(cast_dir: Path, card: str) -> None:
    (cast_dir.parent / "secret.json").write_text("{}")
    edit(cast_dir / "cast.json", lambda m: m["characters"][0].update(card=card))

    with pytest.raises(InputError, match="is no file in cards/"):
        read_cast(cast_dir)


def test_a_card_that_links_out_of_the_cast_is_not_followed(cast_dir: Path) -> None:
    card = cast_dir / "cards" / "Sherlock-Holmes.json"
    outside = cast_dir.parent / "outside.json"
    card.rename(outside)
    card.symlink_to(outside)

    with pytest.raises(InputError, match="a link to a file outside"):
        read_cast(cast_dir)


@pytest.mark.parametrize("name", ["cards", "additions", ".commit", ".lock"])
def test_a_cast_is_not_written_through_links_that_lead_out_of_it(cast_dir: Path, name: str) -> None:
    outside = write_cast(cast_dir.parent / "other", **fields(seed=1, cards={})).path
    (outside / "notes.json").write_text("{}")
    edit(cast_dir / "cast.json", lambda m: m["characters"][0].update(card=None, card_hash=None))
    shutil.rmtree(cast_dir / "cards")
    (cast_dir / name).unlink(missing_ok=True)
    (cast_dir / name).symlink_to(outside / "cast.json" if name == ".lock" else outside)
    before = {file: file.read_bytes() for file in sorted(outside.rglob("*")) if file.is_file()}

    assert read_cast(cast_dir).manifest.seed == 7, "not the one that .commit leads to"
    with pytest.raises(InputError, match="not written through links"):
        write_cast(cast_dir, **fields())
    assert before == {f: f.read_bytes() for f in sorted(outside.rglob("*")) if f.is_file()}


def test_a_cast_can_be_read_by_whoever_may_read_a_new_file(cast_dir: Path) -> None:
    (cast_dir / "plain").touch()
    files = (
        "plain",
        "cast.json",
        "blocks.safetensors",
        "router.json",
        "cards/Sherlock-Holmes.json",
    )

    assert len({(cast_dir / name).stat().st_mode for name in files}) == 1


def test_another_card_than_the_one_in_the_manifest_is_refused(cast_dir: Path) -> None:
    card = cast_dir / "cards" / "Sherlock-Holmes.json"
    edit(card, lambda c: c["data"].update(description="A baker."))

    with pytest.raises(InputError, match=r"Sherlock-Holmes.json: this is not the card .* Put the"):
        read_cast(cast_dir)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda m: m.update(format="personae-cast/2"), "format"),
        (lambda m: m.update(rank=0), "rank"),
        (lambda m: m.update(code="import os"), "code"),
        (lambda m: m["characters"][1]["weights"].update(nobody=1), "no block here"),
        (lambda m: m["characters"][1].update(name="shared"), "no character may be named"),
        (lambda m: m["characters"][1].update(name="Watson"), "does not know the characters"),
    ],
)
def test_a_manifest_that_is_none_is_refused(
    cast_dir: Path, change: Callable[[Any], None], said: str
) -> None:
    edit(cast_dir / "cast.json", change)

    with pytest.raises(InputError, match=said):
        read_cast(cast_dir)


@pytest.mark.parametrize("file", ["cast.json", "router.json", "blocks.safetensors"])
def test_a_missing_file_is_named(cast_dir: Path, file: str) -> None:
    (cast_dir / file).unlink()

    with pytest.raises(InputError, match=file):
        read_cast(cast_dir)


def test_parts_that_do_not_fit_each_other_are_not_written(tmp_path: Path) -> None:
    for other, said in (
        ({"tensors": blocks_of(slots=2)}, "its shape"),
        ({"cards": {"Watson": HOLMES}}, "'Watson', who is not of the cast"),
        ({"alpha": 0.0}, "alpha"),
    ):
        with pytest.raises(InputError, match=said):
            write_cast(tmp_path / "c", **fields(**other))
        assert not (tmp_path / "c" / "cast.json").exists()
        assert [p.name for p in (tmp_path / "c").glob(".p*")] == []


# Whole or not at all -----------------------------------------------------------------------------


class _Killed(BaseException):
    """No `except OSError` sees it, as none sees a kill."""


class _Killer:
    """Ends everything at the n-th change of the file system below a folder, clean-up too."""

    EVENTS = frozenset({"os.rename", "os.remove", "os.link", "os.mkdir", "os.rmdir"})

    def __init__(self) -> None:
        self.folder, self.left, self.seen = "", 0, 0
        sys.addaudithook(self._heard)

    def _heard(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.folder or event not in self.EVENTS:
            return
        by_handle = arguments[-1] != -1  # shutil.rmtree names files below an open folder
        if self.folder in str(arguments[0]) or by_handle:
            self.seen += 1
            if self.seen > self.left:
                raise _Killed


@pytest.fixture(scope="module")
def killer() -> _Killer:
    return _Killer()


@pytest.fixture
def disarmed(killer: _Killer) -> Iterator[_Killer]:
    yield killer
    killer.folder = ""


def test_a_kill_at_any_moment_leaves_the_old_cast_or_the_new_one(
    tmp_path: Path, disarmed: _Killer
) -> None:
    small, other = (
        Character(name="Holmes", spec_version="3.0", description=text)
        for text in ("A sleuth.", "Bees.")
    )
    old = fields(seed=1, cards={"Sherlock Holmes": small})
    new = fields(
        seed=2, tensors=blocks_of(seed=5), cards={"Alice": small, "Sherlock Holmes": other}
    )
    found = []
    for moment in range(200):
        path = tmp_path / f"at-{moment}"
        write_cast(path, **old)
        disarmed.folder, disarmed.left, disarmed.seen = str(path), moment, 0
        try:
            write_cast(path, **new)
            killed = False
        except _Killed:
            killed = True
        disarmed.folder = ""
        cast = read_cast(path)
        seed = cast.manifest.seed
        found.append(seed)
        expected = old if seed == 1 else new
        assert cast.cards == expected["cards"]
        assert np.array_equal(
            cast.tensors["A.model.layers.0.q"], expected["tensors"]["A.model.layers.0.q"]
        )
        # Whoever writes next finishes or clears what was left.
        again = write_cast(path, **(old | {"seed": 3}))
        assert again.manifest.seed == 3
        assert sorted(p.name for p in path.iterdir()) == [
            ".lock", "blocks.safetensors", "cards", "cast.json", "router.json",
        ]  # fmt: skip
        if not killed:
            break
    assert not killed, "the loop saw every moment"
    assert found == sorted(found), "once the new cast is there it stays"
    assert set(found) == {1, 2}
    assert len(found) > 10


def test_other_files_in_the_directory_are_left_alone(cast_dir: Path) -> None:
    (cast_dir / "loss.svg").write_text("<svg/>")
    (cast_dir / "checkpoint").mkdir()
    write_cast(cast_dir, **fields(cards={}))

    assert (cast_dir / "loss.svg").exists()
    assert (cast_dir / "checkpoint").is_dir()
    assert not list((cast_dir / "cards").glob("*.json")), "cards of the cast before"


def test_a_cast_whose_files_cannot_get_to_their_places_is_read_all_the_same(
    cast_dir: Path,
) -> None:
    (cast_dir / "router.json").unlink()
    (cast_dir / "router.json").mkdir()

    assert write_cast(cast_dir, **fields(seed=8)).manifest.seed == 8
    assert (cast_dir / ".commit").is_dir()
    (cast_dir / "router.json").rmdir()
    assert write_cast(cast_dir, **fields(seed=9)).manifest.seed == 9
    assert not (cast_dir / ".commit").exists()


def test_two_who_add_to_one_cast_do_not_lose_each_others_work(cast_dir: Path) -> None:
    read = read_cast(cast_dir).manifest
    write_cast(cast_dir, **fields(seed=8), onto=read)

    with pytest.raises(InputError, match=r"was changed while .* Run the command again"):
        write_cast(cast_dir, **fields(seed=9), onto=read)
    assert read_cast(cast_dir).manifest.seed == 8


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OutputError, match="cannot be written"):
        write_cast(tmp_path / "file" / "cast", **fields())


def test_every_name_gets_a_file_name_of_its_own() -> None:
    taken: set[str] = set()
    names = ["孙悟空", "Ann", "ann", "a/b", "a\\b", "../x", "CON. ", "", "x" * 500, "孙" * 200]
    made = [file_name(name, taken) for name in names]

    assert len({one.casefold() for one in made}) == len(names)
    assert made[:2] == ["孙悟空", "Ann"]
    for one in made:
        assert len(one.encode()) < 200
        assert not set(one) & set("/\\. ")


# On a model --------------------------------------------------------------------------------------


@pytest.fixture
def tiny_cast(tiny_base: Path, tmp_path: Path) -> Path:
    import torch

    from personae.cast.base import load_base
    from personae.cast.stacked import StackedLoRA

    torch.set_num_threads(1)
    base = load_base(str(tiny_base))
    stack = StackedLoRA(
        base.model, ["shared", "Ada"], rank=2, alpha=4, targets=["q_proj", "up_proj"]
    )
    state = stack.state()
    drawn = np.random.default_rng(3)
    for name in state:
        state[name] = drawn.normal(size=state[name].shape).astype(np.float32) / 10
    write_cast(
        tmp_path / "tiny",
        base=base.ref,
        rank=2,
        alpha=4,
        blocks=[Block(name="shared"), Block(name="Ada")],
        characters=[CastCharacter(name="Ada", weights={"shared": 1, "Ada": 1})],
        tensors=state,
    )
    return tmp_path / "tiny"


def test_attached_blocks_speak_as_they_did_before_they_were_written(
    tiny_base: Path, tiny_cast: Path
) -> None:
    import torch

    from personae.cast.base import load_base
    from personae.cast.stacked import StackedLoRA

    cast = read_cast(tiny_cast)
    first = load_base(str(tiny_base))
    stack = StackedLoRA(
        first.model, ["shared", "Ada"], rank=2, alpha=4, targets=["q_proj", "up_proj"]
    )
    stack.load_state(cast.tensors)
    again = attach(second := load_base(str(tiny_base)), cast)
    ids = torch.arange(3, 23)[None]

    def logits(base: Any, stack: StackedLoRA) -> Any:
        with torch.no_grad(), stack.speaking(stack.weights([{"shared": 1, "Ada": 1}])):
            return base.model(ids).logits

    assert torch.equal(logits(first, stack), logits(second, again))
    with torch.no_grad():
        assert (logits(first, stack) - second.model(ids).logits).abs().max() > 1e-3


def test_a_cast_on_another_model_is_refused(tiny_base: Path, tiny_cast: Path) -> None:
    from personae.cast.base import load_base

    base = load_base(str(tiny_base))
    base = replace(base, ref=base.ref.model_copy(update={"sha256": "1" * 64}))

    with pytest.raises(InputError, match=r"is another model .* Give the base"):
        attach(base, read_cast(tiny_cast))


def test_a_model_without_the_adapted_modules_is_refused_and_left_as_it_was(
    tiny_base: Path, tiny_cast: Path
) -> None:
    import torch

    from personae.cast.base import load_base

    base = load_base(str(tiny_base))
    cast = read_cast(tiny_cast)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        before = base.model(ids).logits
    wide = {
        name: np.concatenate([t, t], axis=2 if name.startswith("A") else 1)
        for name, t in cast.tensors.items()
    }

    with pytest.raises(InputError, match=r"do not fit this model at A.model.layers.0"):
        attach(base, replace(cast, tensors=wide))
    with torch.no_grad():
        assert torch.equal(base.model(ids).logits, before)
    assert not any("base" in name.split(".") for name, _ in base.model.named_modules())
