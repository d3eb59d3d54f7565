"""A page as a browser and a person take it, and texts that want to be more than text."""

from __future__ import annotations

from html.parser import HTMLParser

INLINE = {"b", "span", "code"}
VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Checks that tags close in order and collects what a browser would act upon."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._space(tag)
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        self._space(tag)
        assert self.open.pop() == tag

    def _space(self, tag: str) -> None:
        if tag not in INLINE:
            self.words.append(" ")

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


HOSTILE = [
    "<script>alert(1)</script>",
    "</style></title><style>body{display:none}</style>",
    '"><img src=http://evil.example/x onerror=alert(1)>',
    "שלום \u202e drowssap",
    "\ud800 lone \udfff",
    "nul\x00 escape\x1b[31m",
    "{{ 7*7 }}{% raw %}",
    "]]><!-- -->",
]
