"""Files, packages, local servers and settings that are broken for real."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import struct
import sys
import textwrap
import time
from urllib.parse import urlsplit

import pytest
from plain_server import PlainServer, served
from quirks.ollama import Ollama
from quirks.server import KnownText, running
from servers import free_port, smollm2_gguf

from disco.cli.doctor import desk_servers, packages
from disco.endpoints.attached.announcement import Announcement, ServedModel, announce
from disco.endpoints.attached.process_identity import process_start
from disco.state import Database
from tests.cli.doctor.keyed_api import api

pytestmark = pytest.mark.real


def gguf(path, *, template=None, width=64, heads=4, blocks=2):
    """A whole GGUF file of a header alone."""

    def text(value):
        return struct.pack("<Q", len(value)) + value.encode()

    entries = {"general.architecture": "llama"} | (
        {} if template is None else {"tokenizer.chat_template": template}
    )
    numbers = {
        "llama.embedding_length": width,
        "llama.attention.head_count": heads,
        "llama.block_count": blocks,
    }
    body = b"".join(text(name) + struct.pack("<I", 8) + text(value) for name, value in entries.items())
    body += b"".join(text(name) + struct.pack("<II", 4, value) for name, value in numbers.items())
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries) + len(numbers)) + body)
    return path


# ------------------------------------------------------------------ the local model


def test_a_name_that_is_no_models(doctor):
    doctor("--local", "smolm2").fault("model file", "Unknown model name 'smolm2'", remedy="'smollm2-135m'")


def test_a_file_that_is_not_there(doctor, tmp_path):
    path = tmp_path / "missing.gguf"
    doctor("--local", str(path)).fault("model file", f"no model file {path}", remedy="Check the path")


def test_a_file_that_was_cut_off(doctor, tmp_path):
    path = tmp_path / "half.gguf"
    with smollm2_gguf().open("rb") as whole:
        path.write_bytes(whole.read(20_000_000))
    report = doctor("--local", str(path))
    report.fault("model file", "it is truncated", "20,000,000", remedy="Download it again")
    assert report.of("local model")["verdict"] == "not checked"


def test_a_file_that_is_no_model(doctor, tmp_path):
    path = tmp_path / "page.gguf"
    path.write_text("<!doctype html>the login page of a download")
    doctor("--local", str(path)).fault(
        "model file", "does not begin with the letters GGUF", remedy="Download it again"
    )


def test_a_model_that_cannot_chat(doctor, tmp_path):
    path = gguf(tmp_path / "base.gguf")
    doctor("--local", str(path)).fault("chat template", "no chat template", remedy="instruct model")


def test_a_model_that_is_too_large(doctor, tmp_path):
    path = gguf(tmp_path / "huge.gguf", template="{{ messages }}")
    with path.open("ab") as file:
        file.truncate(8 * 2**40)  # 8 TiB, of which the disk holds a few bytes
    report = doctor("--local", str(path))
    report.fault("memory", "does not fit", "8192.1 GiB", remedy="a smaller model")
    assert "does not fit into memory" in report.of("local model")["what"]


# ------------------------------------------------------------------ packages


def installed(folder, monkeypatch, package, version):
    """Make it look as if a package were installed in this version."""
    info = folder / f"{package.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    monkeypatch.syspath_prepend(str(folder))


def compiled(folder, monkeypatch, code):
    """Make it look as if llama-cpp-python were installed: its module is this code."""
    (folder / "llama_cpp" / "lib").mkdir(parents=True)
    (folder / "llama_cpp" / "lib" / "libllama.so").touch()
    (folder / "llama_cpp" / "__init__.py").write_text(code)
    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    installed(folder, monkeypatch, "llama-cpp-python", "0.3.36")


def test_nothing_runs_a_model(doctor, monkeypatch):
    for module in ("llama_cpp", "xllamacpp"):
        monkeypatch.setitem(sys.modules, module, None)  # so that it is not found
    report = doctor("--local", "smollm2-135m")
    report.fault("runtime", "llama.cpp, which is not installed", remedy='pip install "disco-llm[local]"')
    assert report.document["cannot"][0] == "get answers from this machine with --local smollm2-135m"


def test_llama_cpp_is_of_another_version(doctor, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    installed(tmp_path, monkeypatch, "xllamacpp", "2026.4.8672")
    report = doctor("--local", "smollm2-135m", "--runtime", "engine")
    report.fault("runtime", "2026.4.8672 is installed", remedy='pip install "disco-llm[local]"')


def test_openai_is_of_another_version(doctor, monkeypatch, tmp_path):
    folder = tmp_path / "openai-1.2.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: openai\nVersion: 1.2.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    doctor().fault("packages", "openai 1.2.0 is installed", remedy='pip install "openai')


@pytest.mark.slow
def test_llama_cpps_own_server_answers(doctor):
    """The real server out of the wheel."""
    report = doctor("--local", "smollm2-135m", "--runtime", "llama-server")
    assert report.document["status"] == 0
    assert "llama.cpp's own server" in report.of("runtime")["what"]
    assert "writes its first word" in report.of("local model")["what"]


def test_the_extra_of_a_runtime_is_told_as_the_others_are(doctor, monkeypatch):
    needed = tuple(
        packages.Requirement(name, "", extra) for name, extra in (("xllamacpp", "local"), ("psutil", "power"))
    )
    monkeypatch.setattr(packages, "requirements", lambda: needed)
    monkeypatch.setattr(packages, "_version", {"xllamacpp": "2026.10.1"}.get)
    assert doctor().of("extras")["what"] == "Installed: local. Not installed: power."


@pytest.mark.slow
def test_llama_cpp_cannot_be_loaded(doctor, monkeypatch, tmp_path):
    """As where a shared library of the system is missing."""
    compiled(tmp_path, monkeypatch, "raise OSError('libgomp.so.1: cannot open shared object file')")
    report = doctor("--local", "smollm2-135m")
    (found,) = (one for one in report.document["findings"] if one["verdict"] == "does not")
    assert "libgomp.so.1" in found["what"]
    assert "--force-reinstall" in found["remedy"]


def test_llama_cpp_crashes_at_the_first_token(doctor, monkeypatch, tmp_path):
    """The real library, except that it executes an illegal instruction where it would compute: code for another CPU."""
    code = """
        import importlib.util, os, pathlib, signal
        from disco.endpoints.llamacpp.model.declarations import WheelLibrary
        (folder,) = importlib.util.find_spec("xllamacpp").submodule_search_locations
        (shared,) = pathlib.Path(folder).glob("xllamacpp.*.so")
        real = WheelLibrary(shared)
        real.llama_decode = lambda *arguments: os.kill(os.getpid(), signal.SIGILL)
        def __getattr__(name):
            return getattr(real, name)
    """
    compiled(tmp_path, monkeypatch, textwrap.dedent(code))
    report = doctor("--local", "smollm2-135m")
    report.fault(
        "local model", "crashes before the first word: SIGILL", "another processor", remedy="pip uninstall"
    )


# ------------------------------------------------------------------ local servers


def test_no_local_server_is_there(doctor):
    port = free_port()
    doctor("--local", f"http://127.0.0.1:{port}/v1#m").fault(
        "local server", "Nothing answers", remedy="Start the server"
    )


def test_a_server_on_a_usual_port_is_found_and_what_to_type_is_told(doctor, monkeypatch):
    with running(Ollama(KnownText("Hello."), ("qwen3:4b", "big:cloud"))) as ollama:
        port = int(ollama.base_url.split(":")[2].removesuffix("/v1"))
        monkeypatch.setattr(desk_servers, "USUAL_PORTS", (port, free_port()))
        report = doctor()
    found = report.of("found server")
    assert found["what"] == f"Ollama answers on port {port} with qwen3:4b."
    assert f"--local 'http://localhost:{port}/v1#qwen3:4b' " in found["remedy"]
    assert any(
        f"disco chat --local 'http://localhost:{port}/v1#qwen3:4b'" in can for can in report.document["can"]
    )
    assert ollama.chats == []


def test_ollama_has_not_pulled_the_model(doctor):
    with running(Ollama(KnownText("Hello."), ("llama3.2:3b", "qwen3:4b"))) as ollama:
        report = doctor("--local", f"{ollama.base_url}#qwen3:8b")
    report.fault("local server", "no model 'qwen3:8b'", remedy="ollama pull qwen3:8b")
    assert "'qwen3:4b'" in report.of("local server")["remedy"]


def test_a_cloud_model_of_ollama_by_its_name(doctor):
    report = doctor("--local", "http://localhost:11434/v1#gpt-oss:120b-cloud")
    (found,) = (one for one in report.document["findings"] if one["subject"] == "local server")
    assert "prompts would leave this machine" in found["what"]
    assert "runs here" in found["remedy"]


def test_a_cloud_model_of_ollama_under_another_name(doctor):
    with running(Ollama(KnownText("Hello."), ("mine:latest",), remote=("mine:latest",))) as ollama:
        report = doctor("--local", f"{ollama.base_url}#mine")
        assert ollama.uploaded == []
    report.fault("local server", "runs at https://ollama.com", remedy="Use a model that is here")


def test_several_models_and_none_named(doctor):
    with running(Ollama(KnownText("Hello."), ("llama3.2:3b", "qwen3:4b"))) as ollama:
        doctor("--local", ollama.base_url).fault(
            "local server", "has 2 models", remedy=f"{ollama.base_url}#llama3.2:3b"
        )


def test_an_address_without_its_path(doctor):
    report = doctor("--local", "http://localhost:11434")
    found = report.of("local server")
    assert '"http://localhost:11434/v1"' in found["remedy"]


@pytest.mark.parametrize("where", ["http://me:Zq7Xw2@127.0.0.1:9/v1#m", "http://127.0.0.1:9/v1?key=Zq7Xw2#m"])
def test_a_password_in_an_address_is_not_shown(doctor, where):
    report = doctor("--local", where)
    assert report.of("local server")["verdict"] == "does not"
    assert "Zq7Xw2" not in report.text


def test_a_web_page_where_the_local_server_should_be(doctor, server):
    with server(lambda path, key: (200, "text/html", "<html>a router's page</html>")) as base_url:
        report = doctor("--local", f"{base_url}#m")
    found = report.of("local server")
    assert "a web page" in found["what"]
    assert "#MODEL" in found["remedy"]


def test_a_healthy_local_server(doctor):
    with running(Ollama(KnownText("Hello."))) as ollama:
        report = doctor("--local", ollama.base_url)
    assert report.document["status"] == 0
    assert "Ollama" in report.of("local server")["what"]
    assert "can move to it" in report.of("local continuation")["what"]


def test_a_server_that_cannot_continue_is_told_what_that_means(doctor, monkeypatch):
    with served(PlainServer("restarts")) as base_url:
        monkeypatch.setenv("OPENAI_BASE_URL", base_url)
        monkeypatch.setenv("OPENAI_API_KEY", "any-text-at-all")
        report = doctor("--ask", "--model", "m")
    assert "cannot continue" in report.of("continuation")["what"]
    assert report.of("answer")["verdict"] == "works"


# ------------------------------------------------------------------ settings and files


def test_a_preset_with_a_typo(doctor):
    report = doctor("--preset", "balancd")
    found = report.of("preset")
    assert (found["verdict"], "'balancd'" in found["what"]) == ("does not", True)
    assert "'balanced'" in found["remedy"]


def test_a_preset_with_an_unknown_key(doctor, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text('[dispatch]\npolicy = "race"\nbudgt = 0.5\n')
    found = doctor("--preset", str(path)).of("preset")
    assert found["verdict"] == "does not"
    assert "budgt" in found["what"] + found["remedy"]


def test_settings_that_contradict_each_other(doctor):
    found = doctor("--preset", "private").of("settings")
    assert found["verdict"] == "does not"
    assert "local" in found["what"]


def test_a_damaged_state_file(doctor, tmp_path):
    path = tmp_path / "state.sqlite3"
    database = Database(path)
    database.write(lambda connection: None, None)
    database.close()
    data = bytearray(path.read_bytes())
    assert len(data) > 3 * 4096
    data[2 * 4096 : 3 * 4096] = b"\xff" * 4096
    path.write_bytes(data)
    doctor("--state", str(path)).fault(
        "state file", "damaged", remedy=f"disco state forget --all --state {path}"
    )


def test_the_file_of_another_program(doctor, tmp_path):
    path = tmp_path / "other.sqlite3"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE contacts (name TEXT)")
    before = path.read_bytes()
    found = doctor("--state", str(path)).of("state file")
    assert found["verdict"] == "does not"
    assert found["remedy"]
    assert path.read_bytes() == before


def test_a_state_file_of_a_later_version(doctor, tmp_path):
    path = tmp_path / "state.sqlite3"
    database = Database(path)
    database.write(lambda connection: connection.execute("PRAGMA user_version = 99"), None)
    database.close()
    doctor("--state", str(path)).fault("state file", "version", remedy="")


def test_a_state_file_that_cannot_be_made(doctor, tmp_path):
    """Root may write everywhere, but not below a file."""
    (tmp_path / "file").write_text("")
    found = doctor("--state", str(tmp_path / "file" / "state.sqlite3")).of("state file")
    assert (found["verdict"], "cannot be made" in found["what"]) == ("does not", True)
    assert "DISCO_STATE" in found["remedy"]


def test_a_whole_state_file_is_as_it_was(doctor, tmp_path):
    path = tmp_path / "state.sqlite3"
    database = Database(path)
    database.write(lambda connection: None, None)
    database.close()
    before = path.read_bytes()
    assert doctor("--state", str(path)).of("state file")["verdict"] == "works"
    assert path.read_bytes()[100:] == before[100:]  # SQLite counts writes in its header


def test_a_profile_that_cannot_be_read(doctor, tmp_path):
    folder = tmp_path / "data" / "disco" / "profiles"
    folder.mkdir(parents=True)
    (folder / "half.toml").write_text('kind = "device"\nname = "half"\nprefill_tps = ')
    report = doctor("--local", str(gguf(tmp_path / "half.gguf")))
    found = report.of("profile")
    assert (found["verdict"], "half.toml" in found["what"]) == ("does not", True)
    assert found["remedy"]


# ------------------------------------------------------------------ disco serve


def test_the_port_of_disco_serve_is_taken(doctor):
    import socket

    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as other:
        port = other.getsockname()[1]
        doctor("--port", str(port)).fault("port", f"Port {port} is taken", remedy="disco serve --port ")


def test_the_port_of_disco_serve_is_that_of_the_server(doctor, server):
    """As where a `disco serve` that announces nothing is the server: that is no fault."""
    with server(api) as base_url:
        report = doctor("--port", str(urlsplit(base_url).port))
    assert "OPENAI_BASE_URL" in report.of("port")["what"]
    assert report.document["status"] == 0


def test_a_disco_serve_that_is_announced_and_gone(doctor, tmp_path, monkeypatch):
    folder, port = tmp_path / "serve", free_port()
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    model = ServedModel(name="smollm2-135m", path="/m.gguf", fingerprint="f")
    one = Announcement(
        pid=os.getpid(),
        process_start=process_start(os.getpid()),
        started_s=time.time(),
        serve_pid=os.getpid(),
        serve_port=port,
        program="engine",
        port=port,
        key="0" * 64,
        model=model,
    )
    announce(one, folder)
    doctor().fault("attach", "does not answer", remedy="DISCO_ATTACH=off")


def test_a_folder_of_announcements_that_others_may_read(doctor, tmp_path, monkeypatch):
    folder = tmp_path / "serve"
    folder.mkdir(mode=0o755)
    folder.chmod(0o755)
    monkeypatch.setenv("DISCO_ATTACH", str(folder))
    doctor().fault("attach", "open to other users", remedy=f"chmod 700 {folder}")
