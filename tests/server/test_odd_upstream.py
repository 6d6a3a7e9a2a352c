"""A server behind that answers what no HTTP library of a caller's should get, and one that quotes the owner's keys."""

from __future__ import annotations

import contextlib
import http.client
import json
from functools import partial

import httpx2
import openai
import pytest
import scripted_server as scripted
from asgi import asking
from serving import HELLO, serving, upstream

from disco import AsyncDisco, Backup
from disco.dispatch import Preset

pytestmark = pytest.mark.real

PLAIN = Preset(dispatch={"policy": "server_only"}, playback={"pace_tps": "off"})
CHATS, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
CHAT = {"model": "m", "messages": HELLO}
WAYS = [
    (CHATS, CHAT),
    (CHATS, {**CHAT, "stream": True}),
    (CHATS, {**CHAT, "n": 2}),
    (COMPLETIONS, {"model": "m", "prompt": "x", "stream": True}),
    (EMBEDDINGS, {"model": "m", "input": "x"}),
]
KEY = 'upstream-"key"/+of-forty-characters'
TEXT = scripted.sse(scripted.chunk("Salt"), scripted.chunk(" water."), scripted.chunk(finish="stop"))


def client(**more):
    settings = {"base_url": "http://h.test/v1", "api_key": KEY, "max_retries": 0, "price": (1, 2)}
    return AsyncDisco(policy=PLAIN, **settings | more)


class Body(httpx2.AsyncByteStream):
    """A body that has not been read."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    async def __aiter__(self):
        yield self.data


def answering(answer, *, follow_redirects=False, **more):
    """Callers of a client whose server answers with what `answer` makes of a request, or with a response."""

    def handle(request):
        if callable(answer):
            return answer(request)
        response = dict(answer)
        if "json" in response:
            response["content"] = json.dumps(response.pop("json")).encode()
        return httpx2.Response(**{**response, "content": None}, stream=Body(response.get("content", b"")))

    transport = httpx2.MockTransport(handle)
    http = httpx2.AsyncClient(transport=transport, follow_redirects=follow_redirects)
    return asking(client(http_client=http, **more))


STATUSES = [100, 101, 204, 205, 300, 302, 303, 304, 307, 600, 700, 999]


@pytest.mark.parametrize(("path", "body"), WAYS, ids=str)
def test_a_status_that_is_no_answer_and_no_error_becomes_502(path, body):
    for status in STATUSES:
        with answering({"status_code": status, "content": b'{"error": {"message": "odd"}}'}) as asked:
            answer = asked(path, body)
            assert answer.status == 502, status
            assert answer.error["message"]
    if path != CHATS:
        with answering({"status_code": 304}) as asked:
            assert asked("/v1/models").status == asked("/v1/models/m").status == 502


def test_the_callers_connection_stays_in_step():
    """The answer to the next request is the next request's."""
    odd = scripted.answer(b"", status="304 Not Modified")
    again = scripted.answer(b'{"data": [1]}')
    with upstream(odd, again) as server, contextlib.ExitStack() as stack:
        made = {"base_url": server.base_url}
        served = stack.enter_context(serving(partial(client, **made)))
        connection = stack.enter_context(
            contextlib.closing(http.client.HTTPConnection(*served.address, timeout=60))
        )
        said = []
        for _ in range(2):
            connection.request("POST", EMBEDDINGS, json.dumps({"model": "m", "input": "x"}))
            answer = connection.getresponse()
            said.append((answer.status, answer.read()))
    assert [status for status, _ in said] == [502, 200]
    assert said[1][1] == b'{"data": [1]}'


@pytest.mark.parametrize("value", ["ключ", "é", "\u2028", "a\u0100b"])
def test_a_header_of_any_letters_spoils_no_answer_and_no_error(value):
    odd = [(name, value.encode()) for name in ("x-request-id", "openai-version", "x-ratelimit-odd")]
    for path, body in WAYS:
        content = TEXT if body.get("stream") else json.dumps(DOCUMENT).encode()
        kind = "text/event-stream" if body.get("stream") else "application/json"
        with answering(
            {"status_code": 200, "headers": [("content-type", kind), *odd], "content": content}
        ) as asked:
            assert asked(path, body).status == 200
        refused = {"status_code": 429, "headers": [("retry-after", value.encode())], "content": b"{}"}
        with answering(refused) as asked:
            answer = asked(path, body)
            assert (answer.status, answer.headers["content-type"]) == (429, "application/json")


MESSAGE = {"role": "assistant", "content": "Salt water."}
DOCUMENT = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"} | {
    "choices": [{"index": 0, "message": MESSAGE, "finish_reason": "stop"}]
}


def strictly(data: bytes):
    def refuse(name):
        raise AssertionError(name)

    return json.loads(data, parse_constant=refuse)


@pytest.mark.parametrize(
    "odd", [b"NaN", b"Infinity", b"-Infinity", b"1e400", b"[" * 400 + b"NaN" + b"]" * 400]
)
def test_what_is_written_here_is_json(odd):
    error = b'{"error": {"message": "too hot", "code": "hot", "at": %s}}' % odd
    models = b'{"object": "list", "data": [{"id": "m", "at": %s}]}' % odd
    with answering({"status_code": 400, "content": error}) as asked:
        for path, body in WAYS:
            answer = asked(path, body)
            assert (answer.status, strictly(answer.body)["error"]["message"]) == (400, "too hot")
    with answering({"status_code": 200, "content": models}) as asked:
        assert strictly(asked("/v1/models").body)["data"][0]["id"] == "m"
    events = {"status_code": 200, "headers": {"content-type": "text/event-stream"}}
    events["content"] = TEXT.partition(b"\n\n")[0] + b"\n\ndata: " + error + b"\n\n"
    backup = Backup(base_url="http://127.0.0.1:1/v1", api_key="k", model="b")
    with answering(events, backups=[backup]) as asked:
        last = asked(CHATS, {**CHAT, "stream": True}).body.strip().rpartition(b"data: ")[2]
        assert strictly(last)["error"]["message"].startswith("too hot")


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ({"error": "no such model"}, "no such model"),
        ([{"error": {"message": "key not valid", "status": "INVALID"}}], "key not valid"),
        ({"detail": "field missing"}, "field missing"),
        ({"error": {"message": {"not": "a text"}}}, "The server behind disco answered with status 400."),
        ({"error": {"message": None, "code": 7}}, "The server behind disco answered with status 400."),
        ("plainly no", "plainly no"),
    ],
)
def test_an_error_of_another_shape_keeps_its_words(said, message):
    with answering({"status_code": 400, "json": said}) as asked:
        for path, body in WAYS:
            assert asked(path, body).error["message"] == message


# ---------------------------------------------------------------------- the owner's keys


def forms(key: str) -> list[bytes]:
    return [key.encode(), json.dumps(key)[1:-1].encode(), httpx2.QueryParams({"k": key})["k"].encode()]


def pieces_of(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@pytest.mark.parametrize("size", [1, 2, 7, 30, 100_000])
@pytest.mark.parametrize("stays", [True, False])
def test_a_key_in_pieces_reaches_no_caller(size, stays):
    """Of any of the owner's servers, whoever quotes it; and what is no key comes whole."""
    others = {
        "default_headers": {"x-gateway-token": "token-of-the-gateway"},
        "default_query": {"api-key": "key-of-the-query"},
    }
    backup = Backup(base_url="http://127.0.0.1:1/v1", api_key="key-of-the-backup", model="b")
    keys = (KEY, "token-of-the-gateway", "key-of-the-query", backup.api_key)
    text = b"data: upstream-, upst" + b"".join(b"<%s|%s>" % (forms(key)[0], forms(key)[1]) for key in keys)
    text += (
        b"\n\n: token-of-the-gatewa\r\ndata: "
        + b"x" * 3_000
        + forms(KEY)[0][:20]
        + (b"\n\n" if stays else b"")
    )
    script = scripted.stream(*pieces_of(text, size))
    with upstream(script) as server, contextlib.ExitStack() as stack:
        made = {"base_url": server.base_url, "backups": [backup], **others}
        served = stack.enter_context(serving(partial(client, **made)))
        answer = served.ask(COMPLETIONS, {"model": "m", "prompt": "x", "stream": True})
    begin = (
        b"data: upstream-, upst"
        + b"<[key]|[key]>" * 4
        + b"\n\n: token-of-the-gatewa\r\ndata: "
        + b"x" * 3_000
    )
    assert answer.body == begin + (forms(KEY)[0][:20] + b"\n\n" if stays else b"[key]")


def test_a_line_without_end_is_passed_on_all_the_same():
    line = b"data: " + b"y" * (3 * 2**20) + KEY.encode() + b"z" * (2**20)
    script = scripted.stream(*pieces_of(line, 65_536 + 7), b"\n\n")
    with upstream(script) as server, contextlib.ExitStack() as stack:
        served = stack.enter_context(serving(partial(client, base_url=server.base_url)))
        answer = served.ask(COMPLETIONS, {"model": "m", "prompt": "x", "stream": True})
    assert answer.body == line.replace(KEY.encode(), b"[key]") + b"\n\n"


def test_a_key_in_an_error_a_header_or_the_list_of_models_reaches_no_caller():
    quoted = {"error": {"message": f"bad key {KEY}", "code": KEY, KEY: [KEY]}}
    for status, content in (
        (400, quoted),
        (500, quoted),
        (200, {**DOCUMENT, "id": KEY, "data": [{"id": KEY}]}),
    ):
        answer = {"status_code": status, "json": content, "headers": {"x-request-id": KEY}}
        with answering(answer) as asked:
            for path, body in (*WAYS, ("/v1/models", None), ("/v1/models/x", None)):
                came = asked(path, body)
                everything = came.body + repr(came.headers).encode()
                assert not any(form in everything for form in forms(KEY)), (path, everything)


# ---------------------------------------------------------------------- redirects and cookies


@pytest.mark.parametrize(
    ("location", "follows"),
    [
        ("/v1/elsewhere", True),
        ("http://h.test/v1/elsewhere", True),
        ("https://h.test/v1/elsewhere", True),
        ("http://h.test:81/v1/elsewhere", False),
        ("http://other.test/v1/elsewhere", False),
        ("//other.test/v1/elsewhere", False),
        ("http://h.test.other.test/", False),
    ],
)
def test_no_redirect_takes_a_callers_prompt_to_another_host(location, follows):
    hosts = []

    def answer(request):
        hosts.append((request.url.host, request.url.port))
        if request.url.path.endswith("elsewhere"):
            return httpx2.Response(200, json=DOCUMENT)
        return httpx2.Response(307, headers={"location": location})

    with answering(answer, follow_redirects=True) as asked:
        statuses = {asked(path, body).status for path, body in WAYS if not body.get("stream")}
    assert statuses == ({200} if follows else {502})
    assert set(hosts) <= {("h.test", None)}


def test_no_cookie_of_a_server_goes_with_the_next_callers_request():
    cookies = []

    def answer(request):
        cookies.append(request.headers.get("cookie"))
        return httpx2.Response(200, json=DOCUMENT, headers={"set-cookie": "who=the-first; Path=/"})

    with answering(answer) as asked:
        for path, body in WAYS * 2:
            assert "set-cookie" not in asked(path, body).headers
    assert set(cookies) == {None}


def test_what_the_sdk_raises_at_the_server_itself_it_raises_here():
    """Code, type and message of an error object in any chunk, with and without a backup."""
    said = {"message": "upstream provider disconnected", "code": 502, "type": "provider"}
    first = scripted.sse({**scripted.chunk("Rhine "), "usage": None}, done=False)
    lasts = [{**scripted.chunk(), "choices": []}, scripted.chunk(""), {}]
    for last in lasts:
        script = scripted.stream(first, scripted.sse({**last, "error": said}))
        for with_backup in (False, True):
            with upstream(script) as server, contextlib.ExitStack() as stack:
                made = {"base_url": server.base_url}
                if with_backup:
                    made["backups"] = [Backup(base_url=server.base_url, api_key="k" * 9, model="b")]
                served = stack.enter_context(serving(partial(client, **made)))
                assert told(served.base_url) == told(server.base_url)


def told(base_url):
    """What the SDK raises there."""
    with (
        openai.OpenAI(base_url=base_url, api_key="k", max_retries=0) as sdk,
        pytest.raises(openai.APIError) as caught,
    ):
        list(sdk.chat.completions.create(**CHAT, stream=True))
    return caught.value.message, caught.value.code, caught.value.type


@pytest.mark.parametrize("letters", ["x", "EVIL\n\x1b[31m", "\u202e"])
@pytest.mark.parametrize("times", [100, 100_000])
def test_a_callers_names_do_not_fill_the_log_the_error_or_the_record(letters, times, caplog):
    caplog.set_level("DEBUG", logger="disco")
    name = (letters * times)[:100_000]
    routes = []
    with answering({"status_code": 200, "json": DOCUMENT}, price=None, on_route=routes.append) as asked:
        for body in ({"model": name}, {"disco": {name: 1}}, {"disco": {"preset": name}}, {name: 1}):
            answer = asked(CHATS, {**CHAT, **body})
            assert answer.status < 500
            assert len(answer.body) < 5_000
        asked("/v1/models/" + name[:50])
        asked("/v1/" + name)
    logged = "".join(record.getMessage() + "\n" for record in caplog.records)
    assert len(logged) < 5_000
    assert "\x1b" not in logged
    assert all(len(repr(route)) < 20_000 for route in routes)
