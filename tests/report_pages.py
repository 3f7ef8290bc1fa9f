"""Pages of reports as tests read them."""

import json
from html.parser import HTMLParser

NAMELESS = {"meta", "line", "img", "br"}


class Page(HTMLParser):
    """A page's elements: tag, attributes and text, in order; tags must be closed in order."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.open = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        element = {"tag": tag, "text": "", **dict(attributes)}
        self.elements.append(element)
        if tag not in NAMELESS:
            self.open.append(element)

    def handle_endtag(self, tag):
        if tag not in NAMELESS:
            assert self.open.pop()["tag"] == tag

    def handle_data(self, data):
        for element in self.open:
            element["text"] += data

    def all(self, *tags):
        return [element for element in self.elements if element["tag"] in tags]

    def classed(self, name):
        return [element for element in self.elements if name in (element.get("class") or "").split()]

    def data(self):
        """What the figures are drawn from, read as strictly as a browser does."""

        def refuse(word):
            raise AssertionError(word)

        scripts = [script for script in self.all("script") if script.get("type") == "application/json"]
        return [json.loads(script["text"], parse_constant=refuse) for script in scripts]


def one_line(error):
    message = str(error.value)
    assert "\n" not in message
    return message
