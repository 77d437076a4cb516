"""Dependency trees in CoNLL-U: reading, writing, and where each word stands in its sentence.

The format: https://universaldependencies.org/format.html. Reading and writing again gives the
same file; what is not a tree is an error that names the file and the line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from headcount.errors import UserError
from headcount.files import atomic_path, read_lines

COLUMNS = 10


@dataclass(frozen=True)
class Word:
    """One syntactic word; `head` is the id of the word it depends on, 0 for the root.

    `start` and `end` are character offsets in the sentence's text. Words of a multi-word token
    share its characters where their forms spell it out ("do" and "n't" of "don't"), else each
    of them has the whole token.
    """

    id: int
    form: str
    lemma: str
    upos: str
    xpos: str
    feats: dict[str, str]
    head: int
    deprel: str
    deps: str = "_"
    misc: dict[str, str] = field(default_factory=dict)
    start: int = -1
    end: int = -1


@dataclass(frozen=True)
class MultiWordToken:
    """A stretch of text that is several words, such as "don't"; `first` and `last` are word ids."""

    first: int
    last: int
    form: str
    misc: dict[str, str] = field(default_factory=dict)
    start: int = -1
    end: int = -1


@dataclass(frozen=True)
class EmptyNode:
    """A node of the enhanced graph that has no text; kept as it is, after word `after`."""

    after: int
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Sentence:
    """A sentence and its tree. `comments` are its comment lines as they stand."""

    text: str
    words: list[Word]
    tokens: list[MultiWordToken] = field(default_factory=list)
    empty_nodes: list[EmptyNode] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)

    @property
    def sent_id(self) -> str:
        """The treebank's name of the sentence, empty where it has none."""
        for comment in self.comments:
            if _comment_key(comment) == "sent_id":
                return comment.partition("=")[2].strip()
        return ""


def read_conllu(path: Path) -> Iterator[Sentence]:
    """The sentences of a CoNLL-U file (`.gz` too), one at a time."""
    return parse_conllu(read_lines(path), str(path))


def parse_conllu(lines: Iterable[str], name: str = "CoNLL-U") -> Iterator[Sentence]:
    """The sentences of CoNLL-U lines; `name` is what errors call the file."""
    block: list[tuple[int, str]] = []
    for number, line in enumerate(lines, start=1):
        if line.strip():
            block.append((number, line))
        elif block:
            yield _Block(name, block).sentence()
            block = []
    if block:
        yield _Block(name, block).sentence()


def write_conllu(path: Path, sentences: Iterable[Sentence]) -> None:
    """Write sentences as one CoNLL-U file, atomically."""
    with atomic_path(path) as partial, partial.open("w", encoding="utf-8", newline="\n") as handle:
        handle.writelines(format_sentence(sentence) for sentence in sentences)


def format_sentence(sentence: Sentence) -> str:
    """A sentence as CoNLL-U, with the empty line that ends it."""
    text = f"# text = {sentence.text}"
    keys = [_comment_key(comment) for comment in sentence.comments]
    lines = [*sentence.comments]
    if "text" in keys:
        lines[keys.index("text")] = text
    else:
        lines.insert(keys.index("sent_id") + 1 if "sent_id" in keys else len(lines), text)
    tokens = {token.first: token for token in sentence.tokens}
    nodes: dict[int, list[EmptyNode]] = {}
    for node in sentence.empty_nodes:
        nodes.setdefault(node.after, []).append(node)
    lines += ["\t".join(node.columns) for node in nodes.get(0, [])]
    for word in sentence.words:
        if word.id in tokens:
            token = tokens[word.id]
            columns = [f"{token.first}-{token.last}", token.form, *["_"] * 7, _join(token.misc)]
            lines.append("\t".join(columns))
        lines.append(
            "\t".join(
                (str(word.id), word.form, word.lemma, word.upos, word.xpos, _join(word.feats),
                 str(word.head), word.deprel, word.deps, _join(word.misc))
            )
        )  # fmt: skip
        lines += ["\t".join(node.columns) for node in nodes.get(word.id, [])]
    return "\n".join(lines) + "\n\n"


def text_of(words: Iterable[Word]) -> str:
    """The text that words spell out by their forms and SpaceAfter."""
    spelt = ((w.form, "" if w.misc.get("SpaceAfter") == "No" else " ") for w in words)
    return "".join(form + space for form, space in spelt).strip()


def _comment_key(comment: str) -> str:
    return comment.partition("=")[0].strip("# ")


def _join(features: dict[str, str]) -> str:
    return "|".join(f"{k}={v}" if v else k for k, v in features.items()) or "_"


def _split(column: str) -> dict[str, str]:
    if column == "_":
        return {}
    return {key: value for key, _, value in (item.partition("=") for item in column.split("|"))}


def _is_id(text: str) -> bool:
    """Whether a column holds the number of a word; no sentence has a word of ten digits."""
    return text.isdecimal() and len(text) < 10


class _Block:
    """The lines of one sentence while they are read."""

    def __init__(self, name: str, lines: list[tuple[int, str]]) -> None:
        self.name = name
        self.lines = lines
        self.text: str | None = None
        self.comments: list[str] = []
        self.words: list[Word] = []
        self.tokens: list[MultiWordToken] = []
        self.empty_nodes: list[EmptyNode] = []
        self.line_of: dict[int, int] = {}  # word id to line number

    def fault(self, number: int, problem: str) -> UserError:
        return UserError(f"{self.name}, line {number}: {problem}.", "Fix or remove the sentence.")

    def sentence(self) -> Sentence:
        for number, line in self.lines:
            if line.startswith("#"):
                self.comments.append(line)
                if _comment_key(line) == "text":
                    self.text = line.partition("=")[2].strip()
            else:
                self.add(number, line)
        if not self.words:
            raise self.fault(self.lines[0][0], "a sentence without words")
        self.check_tree()
        text = self.text if self.text is not None else self.spelt_text()
        words, tokens = self.locate(text)
        return Sentence(text, words, tokens, self.empty_nodes, self.comments)

    def add(self, number: int, line: str) -> None:
        columns = line.split("\t")
        if len(columns) != COLUMNS:
            raise self.fault(number, f"{len(columns)} columns instead of {COLUMNS}")
        name = columns[0]
        if "." in name:
            self.empty_nodes.append(EmptyNode(len(self.words), tuple(columns)))
        elif "-" in name:
            first, _, last = name.partition("-")
            if not (_is_id(first) and _is_id(last) and int(first) <= int(last)):
                raise self.fault(number, f"'{name[:40]}' is not a range of words")
            if int(first) != len(self.words) + 1:
                raise self.fault(number, f"the token {name} does not stand before its words")
            self.tokens.append(
                MultiWordToken(int(first), int(last), columns[1], _split(columns[9]))
            )
        elif name != str(len(self.words) + 1):
            raise self.fault(number, f"word '{name[:40]}' where {len(self.words) + 1} should come")
        else:
            self.line_of[int(name)] = number
            self.words.append(self.word(number, columns))

    def word(self, number: int, columns: list[str]) -> Word:
        if not _is_id(columns[6]):
            raise self.fault(number, f"'{columns[6][:40]}' is not the id of a head")
        return Word(
            int(columns[0]), columns[1], columns[2], columns[3], columns[4], _split(columns[5]),
            int(columns[6]), columns[7], columns[8], _split(columns[9]),
        )  # fmt: skip

    def check_tree(self) -> None:
        """Every head exists, one word is the root, and all words hang from it."""
        heads = {word.id: word.head for word in self.words}
        roots = [word.id for word in self.words if word.head == 0]
        if len(roots) != 1:
            raise self.fault(self.lines[0][0], f"a tree has one root, this one has {len(roots)}")
        for word in self.words:
            if word.head > len(heads):
                raise self.fault(
                    self.line_of[word.id], f"there is no word {word.head} to depend on"
                )
            at, steps = word.id, 0
            while at and steps <= len(heads):
                at, steps = heads[at] if heads[at] <= len(heads) else 0, steps + 1
            if at:
                raise self.fault(self.line_of[word.id], f"word {word.id} depends on itself")
        for token in self.tokens:
            if token.last > len(heads):
                number = self.line_of[len(heads)]
                raise self.fault(
                    number, f"token {token.first}-{token.last} goes past the last word"
                )

    def surface(self) -> Iterator[tuple[Word | MultiWordToken, list[Word]]]:
        """What stands in the text, in order, with the words it is made of."""
        tokens = {token.first: token for token in self.tokens}
        at = 1
        while at <= len(self.words):
            unit = tokens.get(at, self.words[at - 1])
            last = unit.last if isinstance(unit, MultiWordToken) else at
            yield unit, self.words[at - 1 : last]
            at = last + 1

    def spelt_text(self) -> str:
        parts = []
        for unit, _ in self.surface():
            parts.append(unit.form + ("" if unit.misc.get("SpaceAfter") == "No" else " "))
        return "".join(parts).strip()

    def locate(self, text: str) -> tuple[list[Word], list[MultiWordToken]]:
        """Words and tokens with their character offsets in the text."""
        words: list[Word] = []
        tokens: list[MultiWordToken] = []
        at = 0
        for unit, parts in self.surface():
            while at < len(text) and text[at].isspace():
                at += 1
            if not text.startswith(unit.form, at):
                number = self.line_of[parts[0].id]
                raise self.fault(number, f"'{unit.form}' is not the text's next word")
            end = at + len(unit.form)
            if isinstance(unit, MultiWordToken):
                tokens.append(replace(unit, start=at, end=end))
            spelt_out = "".join(part.form for part in parts) == unit.form
            start = at
            for part in parts:
                stop = start + len(part.form) if spelt_out else end
                words.append(replace(part, start=start, end=stop))
                start = stop if spelt_out else at
            at = end
        return words, tokens
