"""The server: answers agree with the model's, and nobody but its own page is answered."""

from __future__ import annotations

import asyncio
import base64
import threading
import zlib

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs headcount[explore]")
from starlette.testclient import TestClient

from headcount.errors import UserError
from headcount.explore.answers import CHARACTERS, TOKENS
from headcount.explore.explore import _is_loopback, _listen, open_models
from headcount.explore.server import FILES, POLICY, Desk, Overtaken, loopback_hosts, make_app

TEXT = "A big dog and a small cat see it ."
HOST = "127.0.0.1:8765"
ORIGIN = {"origin": f"http://{HOST}"}


@pytest.fixture
def client(answers):
    with TestClient(make_app(answers, loopback_hosts(8765)), base_url=f"http://{HOST}") as client:
        yield client


def ask(client, kind, headers=ORIGIN, **asked):
    request = {"model": "full", "text": TEXT, "off": [], "page": "p", "turn": 1} | asked
    return client.post(f"/api/{kind}", json=request, headers=headers)


def test_answers_are_the_models(client, models):
    model, off = models["full"], ["enc.0.0", "cross.1.1"]
    translation = ask(client, "translation", off=off).json()
    assert translation["translation"] == model.translate(TEXT, off=off)
    tokens, logs = model.log_probabilities(TEXT, off=off)
    assert translation["tokens"] == tokens
    assert translation["log_probability"] == pytest.approx(logs.sum(), abs=1e-3)
    attention = ask(client, "attention", off=off).json()
    expected = model.attention(TEXT, off=off)
    flat = np.frombuffer(zlib.decompress(base64.b64decode(attention["weights"])), dtype=np.uint8)
    whole = np.concatenate([expected[head].ravel() for head in expected.heads])
    np.testing.assert_allclose(flat / 255, whole, atol=0.5 / 255 + 1e-6)
    relevance = ask(client, "relevance", off=off).json()
    expected = model.relevance(TEXT, off=off)
    np.testing.assert_allclose(relevance["source"], expected.source, atol=1e-4)
    assert relevance["heads"]["enc.1.2"] == pytest.approx(
        expected.heads["lrp"]["enc.1.2"], abs=1e-4
    )
    assert len(relevance["by_step"]["dec.0.0"]) == len(relevance["steps"])


def test_the_page_knows_the_models(client):
    about = client.get("/api/about").json()
    assert [model["name"] for model in about["models"]] == ["full", "small"]
    assert about["models"][0]["columns"]["lrp"]["enc.0.2"] == pytest.approx(0.3)
    assert about["models"][1]["layers"]["enc"] == [[0, 2], [1, 2]]
    assert about["sentences"][0] == TEXT


@pytest.mark.parametrize(
    ("asked", "status", "message"),
    [
        ({"text": "  "}, 400, "empty"),
        ({"text": "cat " * TOKENS + "and cat"}, 400, f"this page takes {TOKENS}"),
        ({"text": "x" * (CHARACTERS + 1)}, 400, "characters"),
        ({"off": ["enc.9.0"]}, 400, "no head enc.9.0"),
        ({"off": ["enc.0.0"] * 100}, 400, "Too many heads"),
        ({"off": "enc.0.0"}, 400, "not complete"),
        ({"text": None}, 400, "not complete"),
        ({"turn": "now"}, 400, "no such question"),
        ({"model": "../../etc"}, 404, "There is no run"),
        ({"model": None}, 404, "There is no run"),
    ],
)
def test_bad_input_is_one_line(client, asked, status, message):
    response = ask(client, "translation", **asked)
    assert response.status_code == status
    assert message in response.json()["error"]


def test_odd_requests_are_refused(client):
    long = ask(client, "translation", more="x" * 30_000)
    assert (long.status_code, "too long" in long.text) == (400, True)
    plain = client.post("/api/translation", content="{}", headers=ORIGIN)
    assert plain.status_code == 400
    assert client.post("/api/translation", json=[1], headers=ORIGIN).status_code == 400
    assert ask(client, "secrets").status_code == 400
    assert client.get("/api/translation").status_code == 405
    assert client.get("/static/../answers.py").status_code == 404


def test_no_other_page_is_answered(client):
    """Foreign origins, foreign names of this machine, and posts that do not say where from."""
    for headers in ({"origin": "http://evil.example"}, {"origin": "null"}, {}):
        assert ask(client, "translation", headers=headers).status_code == 403
    assert (
        ask(client, "translation", headers={**ORIGIN, "host": "evil.example:8765"}).status_code
        == 421
    )
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    cross = {"sec-fetch-site": "cross-site"}
    assert client.get("/api/about", headers=cross).status_code == 403
    assert client.get("/static/explore.js", headers=cross).status_code == 403
    assert client.get("/", headers=cross).status_code == 200  # a link from elsewhere


def test_every_answer_has_the_policy(client):
    for path in [*FILES, "/api/about", "/nothing"]:
        headers = client.get(path).headers
        assert headers["content-security-policy"] == POLICY
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
    assert "unsafe" not in POLICY
    page = client.get("/").text
    assert "<script>" not in page
    assert "style=" not in page


def test_elsewhere_only_with_the_token(answers):
    app = make_app(answers, None, "secret")
    with TestClient(app, base_url="http://there:1234") as client:
        origin = {"origin": "http://there:1234"}
        assert client.get("/").status_code == 403
        assert client.get("/?token=wrong").status_code == 403
        assert client.get("/?token=secret").status_code == 200
        assert ask(client, "translation", headers=origin).status_code == 403
        token = {"x-headcount-token": "secret"}
        assert ask(client, "translation", headers=origin | token).status_code == 200
        assert ask(client, "translation", headers=token | {"origin": "http://x"}).status_code == 403
    with pytest.raises(ValueError, match="token"):
        TestClient(make_app(answers, None, None)).get("/")


def test_overtaken_requests_are_dropped():
    """While one job runs, of those that wait only the newest of a page is done."""
    desk, gate, done = Desk(), threading.Event(), []

    async def run():
        def job(number):
            if number == 0:
                gate.wait(10)
            done.append(number)
            return number

        first = asyncio.ensure_future(desk.work("page", "translation", 0, lambda: job(0)))
        await asyncio.sleep(0.05)
        later = [
            asyncio.ensure_future(desk.work("page", "translation", n, lambda n=n: job(n)))
            for n in (1, 2, 3)
        ]
        other = asyncio.ensure_future(desk.work("page", "relevance", 1, lambda: job(10)))
        await asyncio.sleep(0.05)
        gate.set()
        return await asyncio.gather(first, *later, other, return_exceptions=True)

    results = asyncio.run(run())
    assert [type(result) for result in results] == [int, Overtaken, Overtaken, int, int]
    assert done == [0, 3, 10]
    desk.close()


def test_addresses(run_folder, tmp_path):
    assert all(map(_is_loopback, ("127.0.0.1", "localhost", "::1")))
    assert not any(map(_is_loopback, ("0.0.0.0", "192.0.2.1", "x.example")))
    with _listen("127.0.0.1", 0) as taken:
        taken.listen()
        with pytest.raises(UserError, match="cannot be served at"):
            _listen("127.0.0.1", taken.getsockname()[1])
    with pytest.raises(UserError, match="no port"):
        _listen("127.0.0.1", 70_000)
    with pytest.raises(UserError, match="not a run folder"):
        open_models([tmp_path])
    assert list(open_models([run_folder, run_folder])) == ["tiny", "tiny'"]
