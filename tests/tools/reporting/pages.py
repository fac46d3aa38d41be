"""Reads pages back."""

import json
from html.parser import HTMLParser

VOID = ("meta", "link", "br", "img", "input")


class Page(HTMLParser):
    """Tables by their ids, texts by section and by tag, data of the script, and what would be loaded from elsewhere.

    Every element must be closed.
    """

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads, self.open, self.tables, self.data, self.ids = [], [], {}, {}, set()
        self.texts, self.sentences = {}, []
        self.sections = {}
        self.directed = ""  # the text within elements that are laid out in the direction of their text
        self._section = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.ids.add(found.get("id"))
        self.loads += [found[name] for name in ("src", "href") if found.get(name) and found[name][0] != "#"]
        if tag == "section" and "id" in found:
            self._section = found["id"]
        if tag == "tr" and self.open and any(name == "table" for name, _ in self.open):
            self.tables.setdefault(self._table(), []).append([])
        if tag in ("td", "th"):
            self.tables[self._table()][-1].append("")
        if tag not in VOID:
            self.open.append((tag, found))
            self.texts.setdefault(tag, []).append("")
        if tag == "span" and found.get("class", "").startswith("sentence"):
            self.sentences.append(found)

    def handle_endtag(self, tag):
        assert self.open.pop()[0] == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script" and self.open[-1][1].get("type") == "application/json":
            self.data[self.open[-1][1]["id"].removeprefix("data-")] = json.loads(data)
        elif any(tag in ("td", "th") for tag, _ in self.open):
            self.tables[self._table()][-1][-1] += data
        for tag in {tag for tag, _ in self.open}:
            self.texts[tag][-1] += data
        self.sections[self._section] = self.sections.get(self._section, "") + data
        if any(found.get("dir") == "auto" for _, found in self.open):
            self.directed += data

    def _table(self) -> str:
        return next(found.get("id", "") for tag, found in reversed(self.open) if tag == "table")
