"""CoNLL-U: reading, offsets, errors, and writing what was read."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from headcount.data.conllu import format_sentence, parse_conllu, read_conllu, write_conllu
from headcount.errors import UserError

TREEBANK = Path(os.environ.get("HEADCOUNT_TREEBANK", Path(__file__).parents[3] / "shared/treebank"))

SAMPLE = """\
# newdoc id = made-up
# sent_id = 1
# text = I don't see a boat (yet).
1	I	I	PRON	PRP	Case=Nom|Number=Sing	4	nsubj	4:nsubj	_
2-3	don't	_	_	_	_	_	_	_	_
2	do	do	AUX	VBP	_	4	aux	4:aux	_
3	n't	not	PART	RB	_	4	advmod	4:advmod	_
4	see	see	VERB	VB	VerbForm=Inf	0	root	0:root	_
5	a	a	DET	DT	_	6	det	6:det	_
6	boat	boat	NOUN	NN	Number=Sing	4	obj	4:obj	Note
6.1	seen	see	VERB	_	_	_	_	4:conj	_
7	(	(	PUNCT	-LRB-	_	8	punct	8:punct	SpaceAfter=No
8	yet	yet	ADV	RB	_	4	advmod	4:advmod	SpaceAfter=No
9	)	)	PUNCT	-RRB-	_	8	punct	8:punct	SpaceAfter=No
10	.	.	PUNCT	.	_	4	punct	4:punct	_

"""


def parse(text: str) -> list:
    return list(parse_conllu(text.splitlines(), "sample"))


def test_words_tokens_and_offsets() -> None:
    (sentence,) = parse(SAMPLE)
    assert sentence.sent_id == "1"
    assert [w.form for w in sentence.words][:4] == ["I", "do", "n't", "see"]
    assert [(w.head, w.deprel) for w in sentence.words][:2] == [(4, "nsubj"), (4, "aux")]
    assert sentence.words[0].feats == {"Case": "Nom", "Number": "Sing"}
    assert all(sentence.text[w.start : w.end] == w.form for w in sentence.words)
    (token,) = sentence.tokens
    assert sentence.text[token.start : token.end] == "don't"
    assert (token.first, token.last) == (2, 3)
    assert [node.after for node in sentence.empty_nodes] == [6]


def test_text_is_spelt_out_where_it_is_not_given() -> None:
    without = "".join(line + "\n" for line in SAMPLE.splitlines() if "# text" not in line)
    (sentence,) = parse(without)
    assert sentence.text == "I don't see a boat (yet)."


def test_words_that_do_not_spell_their_token_share_it() -> None:
    (sentence,) = parse(
        "# text = au lit\n"
        "1-2\tau\t_\t_\t_\t_\t_\t_\t_\t_\n"
        "1\tà\tà\tADP\t_\t_\t3\tcase\t_\t_\n"
        "2\tle\tle\tDET\t_\t_\t3\tdet\t_\t_\n"
        "3\tlit\tlit\tNOUN\t_\t_\t0\troot\t_\t_\n"
    )
    assert [(w.start, w.end) for w in sentence.words] == [(0, 2), (0, 2), (3, 6)]


def test_writing_gives_back_what_was_read(tmp_path: Path) -> None:
    sentences = parse(SAMPLE + SAMPLE)
    assert "".join(map(format_sentence, sentences)) == SAMPLE + SAMPLE
    write_conllu(tmp_path / "out.conllu", sentences)
    assert list(read_conllu(tmp_path / "out.conllu")) == sentences


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("4\tsee\tsee\tVERB", "4\tsee\tVERB", "line 8: 9 columns"),
        ("5\ta\ta", "6\ta\ta", "line 9: word '6' where 5"),
        ("_\t6\tdet", "_\tx\tdet", "line 9: 'x' is not the id"),
        ("_\t6\tdet", "_\t60\tdet", "line 9: there is no word 60"),
        ("_\t6\tdet", f"_\t{'9' * 5000}\tdet", "line 9: '9999999999"),
        ("2-3\tdon't", f"2-{'9' * 5000}\tdon't", "line 5: '2-9999999999"),
        ("_\t6\tdet", "_\t5\tdet", "line 9: word 5 depends on itself"),
        ("VerbForm=Inf\t0", "VerbForm=Inf\t6", "line 1: a tree has one root, this one has 0"),
        ("2-3\tdon't", "2-x\tdon't", "line 5: '2-x' is not a range"),
        ("2-3\tdon't", "3-4\tdon't", "line 5: the token 3-4 does not stand before"),
        ("2-3\tdon't", "2-33\tdon't", "goes past the last word"),
        ("a boat", "a ship", "line 10: 'boat' is not the text's next word"),
    ],
)
def test_errors_name_the_file_and_the_line(old: str, new: str, message: str) -> None:
    assert old in SAMPLE
    with pytest.raises(UserError, match=f"sample, .*{message}" if "line" in message else message):
        parse(SAMPLE.replace(old, new, 1))


def test_a_cycle_is_found() -> None:
    rows = [("1", "2"), ("2", "3"), ("3", "1"), ("4", "0")]
    text = "".join(f"{i}\tw\tw\tX\t_\t_\t{h}\tdep\t_\t_\n" for i, h in rows)
    with pytest.raises(UserError, match="depends on itself"):
        parse(text)


@pytest.mark.parametrize("name", ["en_ewt-ud-dev.conllu.gz", "en_ewt-ud-test.conllu.gz"])
def test_a_real_treebank_survives_reading_and_writing(name: str) -> None:
    path = TREEBANK / name
    if not path.is_file():
        pytest.skip(f"no {name}: set HEADCOUNT_TREEBANK to the folder of UD's English EWT")
    sentences = list(read_conllu(path))
    with gzip.open(path, "rt", encoding="utf-8") as handle:
        assert "".join(map(format_sentence, sentences)) == handle.read()
    assert len(sentences) > 2000
    for sentence in sentences:
        inside = {i for t in sentence.tokens for i in range(t.first, t.last + 1)}
        for word in sentence.words:
            spelt = sentence.text[word.start : word.end]
            assert spelt == word.form or (word.id in inside and word.form != spelt)
