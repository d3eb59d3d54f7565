"""A conversion and the way back lose nothing, whatever the card."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from personae.characters.card import Card, Container, card_from_bytes, read_card
from personae.characters.charx import Charx
from personae.characters.convert import ICON, KEPT, Target, convert, write_card
from personae.characters.png import MAX_KEYWORD_BYTES, Png, is_png, plain_picture, read_png
from personae.characters.reading import MAX_DEPTH, Version
from personae.errors import InputError
from personae.records import Asset, canonical_json
from tests.characters import samples

VERSIONS: tuple[Version, ...] = ("v1", "v2", "v3")


def card(value: Any) -> Card:
    return card_from_bytes(json.dumps(value).encode(), path="card.json")


def same(a: Any, b: Any) -> bool:
    return canonical_json(a) == canonical_json(b)  # unlike ==, tells 1 from True and from 1.0


@given(samples.any_card)
@settings(max_examples=80)
def test_to_another_version_and_back_is_the_card_that_it_was(value: dict[str, Any]) -> None:
    before = card(value)
    for there in VERSIONS:
        gone, _ = convert(before, there, "json")
        assert gone.version == there
        back, _ = convert(card(gone.document), before.version, "json")
        assert same(back.document, value), there
        assert back.character == before.character


@given(samples.any_card, st.lists(st.sampled_from(VERSIONS), max_size=5))
@settings(max_examples=80)
def test_however_long_the_way_home_is_home(value: dict[str, Any], way: list[Version]) -> None:
    before = walker = card(value)
    for there in (*way, before.version):
        walker, _ = convert(walker, there, "json")
    assert same(walker.document, value)


@given(samples.any_card, samples.text)
@settings(max_examples=60)
def test_what_is_written_on_the_way_stays_and_the_rest_comes_home(
    value: dict[str, Any], said: str
) -> None:
    before = card(value)
    for there in VERSIONS:
        gone, _ = convert(before, there, "json")
        edited = gone.with_character(gone.character.model_copy(update={"description": said}))
        back, _ = convert(edited, before.version, "json")
        assert back.character == before.character.model_copy(update={"description": said})


@given(samples.any_card)
@settings(max_examples=40)
def test_to_charx_and_back_is_the_card_that_it_was(value: dict[str, Any]) -> None:
    before = card(value)
    gone, _ = convert(before, "charx", "charx")
    read = card_from_bytes(gone.to_bytes(), path="card.charx")
    assert read.version == "v3"
    back, _ = convert(read, before.version, "json")
    assert same(back.document, value)


@given(samples.any_card)
@settings(max_examples=40)
def test_to_png_and_back_is_the_card_that_it_was(value: dict[str, Any]) -> None:
    before = card(value)
    gone, _ = convert(before, before.version, "png", samples.picture())
    read = card_from_bytes(gone.to_bytes(), path="card.png")
    back, _ = convert(read, before.version, "json")
    assert same(back.document, value)


# What each version is like ---------------------------------------------------------------------


def test_a_v1_card_made_of_v3_is_flat_and_has_the_six_texts() -> None:
    made, losses = convert(card(samples.v3()), "v1", "json")
    assert set(made.document) == {*samples.v1(), "extensions"}
    assert made.document["extensions"]["agnai/voice"] == {"rate": 1.5}
    lost = {finding.place.removeprefix("data.") for finding in losses}
    assert {"character_book", "nickname", "creator_notes", "system_prompt", "tags"} <= lost
    assert "post_history_instructions" not in lost  # it was empty: nothing goes unsaid


def test_a_v2_card_made_of_v3_has_no_field_that_v2_does_not_know() -> None:
    made, losses = convert(card(samples.v3()), "v2", "json")
    assert made.document["spec"] == "chara_card_v2"
    assert made.document["spec_version"] == "2.0"
    assert set(made.document["data"]) == set(samples.v2()["data"])
    father = made.document["data"]["character_book"]["entries"][1]
    assert father["content"] == "Her father was Lord Byron."
    assert "use_regex" not in father
    said = " ".join(finding.message for finding in losses)
    assert "regular expressions" in said
    assert "decorators" in said


def test_a_v3_card_made_of_v2_has_what_v3_demands() -> None:
    made, losses = convert(card(samples.v2()), "v3", "json")
    assert made.document["spec"] == "chara_card_v3"
    assert made.document["spec_version"] == "3.0"
    assert made.document["data"]["group_only_greetings"] == []
    assert made.document["data"]["character_book"]["entries"][0]["use_regex"] is False
    assert not losses


def test_a_field_filled_in_the_newer_version_survives_the_older_one() -> None:
    newer, _ = convert(card(samples.v1()), "v3", "json")
    newer = newer.with_character(
        newer.character.model_copy(update={"nickname": "Ada", "tags": ("a",)})
    )
    older, losses = convert(newer, "v1", "json")
    assert {finding.place for finding in losses} >= {"data.nickname", "data.tags"}
    again, _ = convert(older, "v3", "json")
    assert same(again.document, newer.document)


def test_a_lorebook_entry_added_in_between_is_there_afterwards() -> None:
    gone, _ = convert(card(samples.v3()), "v2", "json")
    book = gone.character.character_book
    assert book is not None
    more = book.entries[0].model_copy(update={"keys": ("tea",), "content": "Tea at five."})
    entries = (more.model_copy(update={"extensions": {}}), *book.entries)
    edited = gone.with_character(
        gone.character.model_copy(
            update={"character_book": book.model_copy(update={"entries": entries})}
        )
    )
    back, _ = convert(edited, "v3", "json")
    found = back.document["data"]["character_book"]["entries"]
    assert found[0]["content"] == "Tea at five."
    assert found[1:] == samples.v3()["data"]["character_book"]["entries"]


def test_the_record_of_a_conversion_that_someone_broke_is_refused_by_its_place() -> None:
    for broken in ({"was": "v3"}, [{"was": "v9"}], [3]):
        value = samples.v2()
        value["data"]["extensions"][KEPT] = broken
        with pytest.raises(InputError, match=KEPT):
            convert(card(value), "v3", "json")


# Files -----------------------------------------------------------------------------------------


def charx(**files: bytes) -> Card:
    value = samples.v3()
    value["data"]["assets"] = [
        {"type": "icon", "uri": f"embeded://{ICON}", "name": "main", "ext": "png"},
        {"type": "x_song", "uri": "embeded://assets/x_song/audio/a.mp3", "name": "a", "ext": "mp3"},
        {"type": "x_link", "uri": "https://example.org/a.png", "name": "b", "ext": "png"},
    ]
    members = {
        "card.json": json.dumps(value).encode(),
        ICON: plain_picture(b"icon").to_bytes(),
        "assets/x_song/audio/a.mp3": b"song",
        "module.risum": b"\x00\x01module",
        "x_meta/0.json": b"{}",
        **files,
    }
    return card_from_bytes(Charx(members).to_bytes(), path="ada.charx")


def test_charx_to_json_holds_its_files_and_back_they_are_files_again() -> None:
    before = charx()
    for version in VERSIONS:
        gone, _ = convert(before, version, "json")
        back, _ = convert(card(gone.document), "charx", "charx")
        assert same(back.document, before.document)
        read = card_from_bytes(back.to_bytes(), path="ada.charx")
        assert read.charx
        assert before.charx
        assert {**read.charx.members, "card.json": b""} == {
            **before.charx.members,
            "card.json": b"",
        }


def test_in_v3_json_an_asset_is_a_data_uri_that_any_application_can_read() -> None:
    gone, _ = convert(charx(), "v3", "json")
    icon, song, link = gone.document["data"]["assets"]
    head, _, body = icon["uri"].partition(",")
    assert head == "data:image/png;base64"
    assert is_png(base64.b64decode(body))
    assert song["uri"] == "data:audio/mpeg;base64," + base64.b64encode(b"song").decode()
    assert link["uri"] == "https://example.org/a.png"


def test_charx_to_png_shows_its_icon_and_back_all_files_are_there() -> None:
    before = charx()
    gone, losses = convert(before, "v3", "png")
    assert gone.png is not None
    read = card_from_bytes(gone.to_bytes(), path="ada.png")
    assert read.png is not None
    idat = [c.data for c in read.png.chunks if c.type == b"IDAT"]
    assert idat == [c.data for c in plain_picture(b"icon").chunks if c.type == b"IDAT"]
    assert not losses
    back, _ = convert(read, "charx", "charx")
    assert back.charx
    assert before.charx
    assert {**back.charx.members, "card.json": b""} == {**before.charx.members, "card.json": b""}
    assert same(back.document, before.document)


def test_the_picture_of_a_png_becomes_the_icon_of_a_charx() -> None:
    gone, _ = convert(card(samples.v3()), "v3", "png", samples.picture())
    made, _ = convert(gone, "charx", "charx")
    assert made.charx is not None
    assert made.charx.members[ICON] == samples.picture().to_bytes()
    assert made.character.assets is not None
    assert made.character.assets[0].uri == f"embeded://{ICON}"


def test_png_to_charx_and_back_is_the_card_that_it_was() -> None:
    for version in VERSIONS:
        start, _ = convert(card(samples.CARDS[version]()), version, "png", samples.picture())
        gone, _ = convert(start, "charx", "charx")
        back, _ = convert(card_from_bytes(gone.to_bytes(), path="a.charx"), version, "png")
        assert same(back.document, start.document)
        assert back.to_bytes() == start.to_bytes()


def test_a_new_picture_on_the_way_becomes_the_icon() -> None:
    gone, _ = convert(charx(), "v3", "png", samples.picture(seed=b"new"))
    back, _ = convert(gone, "charx", "charx")
    assert back.charx is not None
    assert back.charx.members[ICON] == samples.picture(seed=b"new").to_bytes()
    assert same(back.document, charx().document)


def test_an_icon_elsewhere_stays_beside_the_picture() -> None:
    value = samples.v3()
    value["data"]["assets"] = [
        {"type": "icon", "uri": "https://example.org/a.png", "name": "main", "ext": "png"}
    ]
    start, _ = convert(card(value), "v3", "png", samples.picture())
    gone, _ = convert(start, "charx", "charx")
    uris = [asset["uri"] for asset in gone.document["data"]["assets"]]
    assert uris == ["https://example.org/a.png", f"embeded://{ICON}"]
    assert gone.charx is not None
    assert gone.charx.members[ICON] == samples.picture().to_bytes()
    back, _ = convert(gone, "v3", "png")
    assert same(back.document, value)


def test_assets_changed_on_the_way_are_what_comes_home() -> None:
    start, _ = convert(card(samples.v3()), "v3", "png", samples.picture())
    gone, _ = convert(start, "charx", "charx")
    more = Asset(type="x_link", uri="https://example.org/b", name="b", ext="png")
    assets = (*(gone.character.assets or ()), more)
    edited = gone.with_character(gone.character.model_copy(update={"assets": assets}))
    back, _ = convert(edited, "v3", "png")
    assert back.character.assets is not None
    assert [a.uri for a in back.character.assets] == ["ccdefault:", "https://example.org/b"]
    again, _ = convert(back, "charx", "charx")
    assert again.character.assets == assets


@given(samples.any_card, st.lists(st.sampled_from(["v1", "v2", "v3", "charx"]), max_size=4))
@settings(max_examples=40)
def test_no_card_stops_on_any_way_through_all_files(
    value: dict[str, Any], way: list[Target]
) -> None:
    walker = card(value)
    name = walker.character.name
    for to in way:
        for container in ("charx",) if to == "charx" else ("json", "png"):
            walker, _ = convert(walker, to, container)  # type: ignore[arg-type]  # a literal each
            walker = card_from_bytes(walker.to_bytes(), path="card")
            assert walker.character.name == name


def test_files_in_the_chunks_of_a_png_become_files_of_a_charx() -> None:
    value = samples.v3()
    value["data"]["assets"] = [{"type": "x", "uri": "__asset:7", "name": "n", "ext": "bin"}]
    texts = [
        ("chara-ext-asset_:7", base64.b64encode(b"seven")),
        ("ccv3", base64.b64encode(json.dumps(value).encode())),
    ]
    before = card_from_bytes(samples.picture(*texts).to_bytes(), path="ada.png")
    made, _ = convert(before, "charx", "charx")
    assert made.charx
    assert made.charx.members["7"] == b"seven"
    assert made.document["data"]["assets"][0]["uri"] == "embeded://7"
    back, _ = convert(made, "v3", "png")
    assert back.document["data"]["assets"][0]["uri"] == "__asset:7"


def test_the_names_of_files_may_be_chinese_on_every_way() -> None:
    before = charx(**{"assets/x_song/audio/歌.mp3": "歌".encode()})
    for version, container in (("v3", "png"), ("v2", "png"), ("v1", "json")):
        gone, _ = convert(before, version, container)  # type: ignore[arg-type]  # a literal each
        gone = card_from_bytes(gone.to_bytes(), path="ada")
        back, _ = convert(gone, "charx", "charx")
        assert back.charx is not None
        assert back.charx.members["assets/x_song/audio/歌.mp3"] == "歌".encode()


def packed(name: str, data: bytes = b"x") -> Card:
    """A JSON card that says it was a PNG with a file of that name."""
    value = samples.v3()
    files = {name: base64.b64encode(data).decode()}
    value["data"]["extensions"] = {KEPT: [{"was": "png", "now": "json", "files": files}]}
    return card(value)


@pytest.mark.parametrize("name", ["\ud800", "a\0b", "x" * MAX_KEYWORD_BYTES])
@pytest.mark.parametrize(("to", "container"), [("v3", "png"), ("charx", "charx")])
def test_a_kept_file_whose_name_would_not_come_back_is_refused(
    name: str, to: Target, container: Container
) -> None:
    with pytest.raises(InputError, match="a name that no file can have"):
        convert(packed(name), to, container)


def test_a_file_without_a_name_is_no_picture(tmp_path: Path) -> None:
    write_card(packed("", b"no picture"), tmp_path / "a.png")
    back, _ = convert(read_card(tmp_path / "a.png"), "v3", "json")
    (step,) = back.document["data"]["extensions"][KEPT]
    assert step["files"] == {"": base64.b64encode(b"no picture").decode()}


def test_a_file_in_a_png_whose_name_leads_out_of_a_folder_goes_into_no_archive() -> None:
    texts = [
        ("chara-ext-asset_:../../evil", base64.b64encode(b"x")),
        ("ccv3", base64.b64encode(json.dumps(samples.v3()).encode())),
    ]
    before = card_from_bytes(samples.picture(*texts).to_bytes(), path="ada.png")
    with pytest.raises(InputError, match="evil"):
        convert(before, "charx", "charx")


# Writing ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("ending", ["json", "png", "apng"])
def test_each_version_in_each_file_reads_back_equal(
    tmp_path: Path, version: Version, ending: str
) -> None:
    before = card(samples.CARDS[version]())
    path = tmp_path / f"card.{ending}"
    write_card(before, path)
    after = read_card(path)
    assert same(after.document, before.document)
    assert after.character == before.character


def test_a_card_that_was_not_changed_is_written_byte_for_byte(tmp_path: Path) -> None:
    path, copied = tmp_path / "a.json", tmp_path / "b.json"
    path.write_bytes(b' {"name":\t"Ada" ,"description": null}')
    write_card(read_card(path), copied)
    assert copied.read_bytes() == path.read_bytes()


def test_the_chunks_of_the_picture_stay_byte_for_byte(tmp_path: Path) -> None:
    image = tmp_path / "image.png"
    odd = samples.picture(("Comment", b"mine"), seed=b"odd")
    damaged = bytearray(odd.to_bytes())
    at = bytes(damaged).index(b"IDAT") + 6
    damaged[at] ^= 1  # a picture with a wrong checksum is somebody else's trouble
    image.write_bytes(bytes(damaged) + b"trailing")
    out = tmp_path / "card.png"
    write_card(card(samples.v3()), out, image=image)
    before, after = (read_png(p.read_bytes(), path=p) for p in (image, out))
    kept = [c.raw for c in after.chunks if c.keyword not in ("chara", "ccv3")]
    assert kept == [c.raw for c in before.chunks]
    assert after.after == b"trailing"


def chunk_json(png: Png, keyword: str) -> Any:
    (chunk,) = [c for c in png.chunks if c.keyword == keyword]
    return json.loads(base64.b64decode(chunk.data.partition(b"\0")[2]))


def test_a_v3_png_has_a_v2_card_beside_it_with_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "card.png"
    write_card(card(samples.v3()), path)
    png = read_png(path.read_bytes(), path=path)
    assert chunk_json(png, "ccv3") == samples.v3()
    old = chunk_json(png, "chara")
    assert old["spec"] == "chara_card_v2"
    assert old["data"]["creator_notes"].endswith("\n\nBest with a patient model.")
    assert "V3" in old["data"]["creator_notes"]
    assert "nickname" not in old["data"]
    assert KEPT not in json.dumps(old)


def test_a_v2_png_has_no_v3_chunk(tmp_path: Path) -> None:
    path = tmp_path / "card.png"
    write_card(card(samples.v3()), path, "v2")
    png = read_png(path.read_bytes(), path=path)
    assert not [c for c in png.chunks if c.keyword == "ccv3"]
    assert read_card(path).version == "v2"


def test_a_card_without_a_picture_gets_a_plain_one_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "card.png"
    losses = write_card(card(samples.v2()), path)
    assert ["--image" in finding.message for finding in losses] == [True]
    from PIL import Image  # an independent reader

    with Image.open(path) as shown:
        shown.load()
        assert shown.size == (64, 96)
        assert json.loads(base64.b64decode(shown.text["chara"])) == samples.v2()  # type: ignore[attr-defined]  # PIL's class for PNG


@pytest.mark.parametrize(
    ("name", "to", "said"),
    [
        ("a.charx", "v2", "CHARX"),
        ("a.json", "charx", "charx"),
        ("a.txt", "v2", ".json"),
        ("a", "v3", ".png"),
    ],
)
def test_a_version_and_a_file_that_do_not_go_together_are_refused(
    tmp_path: Path, name: str, to: Any, said: str
) -> None:
    with pytest.raises(InputError, match=said):
        write_card(card(samples.v2()), tmp_path / name, to)
    assert not list(tmp_path.iterdir())


def test_what_could_not_be_read_again_is_not_written(tmp_path: Path) -> None:
    deep: Any = "x"
    for _ in range(MAX_DEPTH - 5):
        deep = [deep]
    value = samples.v2()
    value["data"]["character_book"]["entries"][0]["deep"] = deep
    out = tmp_path / "card.json"
    with pytest.raises(InputError, match="could not be read again"):
        write_card(card(value), out, "v1")
    assert not out.exists()


def test_a_json_file_takes_no_picture_and_a_png_no_other_kind(tmp_path: Path) -> None:
    image = tmp_path / "a.jpg"
    image.write_bytes(b"\xff\xd8\xff\xe0")
    with pytest.raises(InputError, match="not a PNG"):
        write_card(card(samples.v2()), tmp_path / "b.png", image=image)
    image.write_bytes(samples.picture().to_bytes())
    with pytest.raises(InputError, match="no picture"):
        write_card(card(samples.v2()), tmp_path / "b.json", image=image)


def test_the_card_in_the_given_picture_is_not_taken_over(tmp_path: Path) -> None:
    image = tmp_path / "other.png"
    write_card(card({**samples.v1(), "name": "Another"}), image)
    out = tmp_path / "card.png"
    write_card(card(samples.v2()), out, image=image)
    assert read_card(out).character.name == "Ada Lovelace"
    assert out.read_bytes().count(b"chara\0") == 1
