"""The local server: who gets an answer, and who does not."""

from __future__ import annotations

import http.client
import json
import socket
from urllib.parse import urlsplit

import pytest

from fedspend.errors import InvalidInput, Refused
from fedspend.pages.serving import HOST, MOST_BYTES, Site, open_browser, serving


def refuse(_):
    raise Refused("over\nbudget")


def fail(*_):
    raise KeyError("a\nb <script>")


SITE = Site(
    pages={
        "": lambda: "<p>first</p>",
        "more": lambda: "<p>second</p>",
        "broken": fail,
        "refused": lambda: refuse({}),
    },
    asks={
        "double": lambda body: {"twice": 2 * body["n"]},
        "no": refuse,
        "broken": fail,
        "nan": lambda _: {"value": float("nan")},
    },
)


@pytest.fixture
def served():
    with serving(SITE) as found:
        yield urlsplit(found.address)


def request(at, method="GET", path=None, body=None, **headers):
    connection = http.client.HTTPConnection(HOST, at.port, timeout=120)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, at.path if path is None else path, body, named)
    reply = connection.getresponse()
    return reply.status, reply.read().decode(), reply.headers


def ask(at, what, body, **headers):
    sent = {"Content_Type": "application/json", **headers}
    return request(at, "POST", at.path + what, json.dumps(body), **sent)


def test_who_has_the_address_gets_the_pages(served):
    assert request(served)[:2] == (200, "<p>first</p>")
    assert request(served, path=served.path + "more?x=1")[:2] == (200, "<p>second</p>")
    assert request(served, path=served.path + "other")[0] == 404


def test_a_question_gets_an_answer(served):
    status, text, headers = ask(served, "double", {"n": 21})
    assert (status, json.loads(text)) == (200, {"twice": 42})
    assert headers["Cache-Control"] == "no-store"


def test_what_fails_unexpectedly_is_one_line_and_the_server_goes_on(served, capfd):
    status, text, _ = ask(served, "broken", {})
    assert status == 500
    assert json.loads(text)["error"].startswith("this failed inside fedspend")
    assert "KeyError" in text
    assert ask(served, "nan", {})[0] == 500
    status, text, headers = request(served, path=served.path + "broken")
    assert (status, headers.get_content_type(), text.count("\n")) == (500, "text/plain", 0)
    assert request(served, path=served.path + "refused")[:2] == (422, "over budget")
    assert request(served)[0] == 200
    assert capfd.readouterr() == ("", "")  # no traceback in the terminal


def test_the_browsers_own_arguments_lead_in_only_once():
    """Every user of the machine can read the arguments of a process."""
    opened = []
    with serving(SITE) as served, pytest.MonkeyPatch.context() as patched:
        patched.setattr("webbrowser.open", lambda url: opened.append(url) or True)
        assert open_browser(served)
        at, door = urlsplit(served.address), urlsplit(opened[0])
        assert at.path.strip("/") not in opened[0]
        assert request(door, Host="evil.example")[0] == 404
        status, _, headers = request(door)
        assert (status, headers["Location"]) == (303, at.path)
        assert request(at)[0] == 200
        assert request(door)[0] == 404
        assert request(at, path="/")[0] == 404


@pytest.mark.parametrize("path", ["/", "/wrong/", "/%20/", "//", "/..%2f/"])
def test_nothing_is_answered_without_the_token(served, path):
    assert request(served, path=path)[0] == 404
    assert request(served, "POST", path + "double", "{}", Content_Type="application/json")[0] == 404


def test_almost_the_token_is_not_the_token(served):
    token = served.path.strip("/")
    assert len(token) == 32  # 24 random bytes
    for near in (token[:-1], token + "x", token.swapcase()):
        assert request(served, path=f"/{near}/")[0] == 404


@pytest.mark.parametrize("host", ["example.org", "127.0.0.1", "127.0.0.1:1", "evil.127.0.0.1", ""])
def test_another_name_for_this_machine_is_refused(served, host):
    assert request(served, Host=host)[0] == 404


def test_localhost_is_this_machine(served):
    assert request(served, Host=f"localhost:{served.port}")[0] == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://example.org"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
        {"Content_Type": "text/plain"},
        {"Content_Type": "application/x-www-form-urlencoded"},
    ],
)
def test_other_sites_cannot_ask(served, headers):
    assert ask(served, "double", {"n": 1}, **headers)[0] == 403


def test_own_pages_can_ask(served):
    own = f"http://{HOST}:{served.port}"
    assert ask(served, "double", {"n": 1}, Origin=own, Sec_Fetch_Site="same-origin")[0] == 200


def test_a_refusal_is_one_line(served):
    status, text, _ = ask(served, "no", {})
    assert (status, json.loads(text)) == (422, {"error": "over budget"})


@pytest.mark.parametrize("body", ["", "{", "[1]", "7", '"x"', "[" * 100_000])
def test_what_is_no_json_object_is_refused(served, body):
    status, text, _ = request(
        served, "POST", served.path + "double", body, Content_Type="application/json"
    )
    assert status == 422
    assert "JSON" in json.loads(text)["error"]


@pytest.mark.parametrize("length", [str(MOST_BYTES + 1), "-1", "many", "1e3"])
def test_what_is_too_long_is_not_read(served, length):
    head = (
        f"POST {served.path}double HTTP/1.1\r\nHost: {HOST}:{served.port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n"
    )
    with socket.create_connection((HOST, served.port), timeout=120) as line:
        line.sendall(head.encode())
        assert b" 422 " in line.recv(4096)


def test_every_reply_forbids_storing_framing_and_referring(served):
    for reply in (request(served), request(served, path="/x"), ask(served, "no", {})):
        headers = reply[2]
        assert headers["Cache-Control"] == "no-store"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Server"].strip() == "fedspend"


def test_it_listens_on_this_machine_only(served):
    mine = {
        found[4][0]
        for found in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)
        if not found[4][0].startswith("127.")
    }
    for address in mine:
        with pytest.raises(OSError), socket.create_connection((address, served.port), timeout=2):
            pass


def test_a_port_that_is_taken_is_named():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"port {port}"), serving(SITE, port):
            pass


def test_two_servers_have_two_tokens():
    with serving(SITE) as one, serving(SITE) as other:
        assert urlsplit(one.address).path != urlsplit(other.address).path
        assert request(urlsplit(one.address), path=urlsplit(other.address).path)[0] == 404
