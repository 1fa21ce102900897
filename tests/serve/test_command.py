"""The real command, ``python -m serve.app``, from outside: answers, an attack by 64 bodies of 32 MiB (on the loopback
interface only), dying replicas, start and end."""

from __future__ import annotations

import shutil
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest
import torch
from safetensors.torch import save_file

from idc.vlm.base import find_base, load_model
from idc.vlm.config import BaseConfig
from serve.config import LimitsConfig
from serve.schema import ErrorAnswer
from tests.processes import descendants
from tests.serve.bodies import CAPTIONS, Pair, conversation, picture, upload, url
from tests.serve.command import Command, free_port, serving, start
from tests.serve.waiting import PATIENCE_S, until
from tests.sockets import answering_to_others, open_to_others
from tests.vlm.artifacts import speaking_folder, wrapped

pytestmark = [pytest.mark.slow, pytest.mark.ray]
LARGE = Pair(*[picture(1500, 1500, shade=40)] * 2)
SETTINGS = ("limits.timeout_s=300", "scaling.max_pairs=2")
"""Generous times for a busy machine; with small batches most pairs of a request wait in the front."""
LIMITS = LimitsConfig()
SLACK_MIB = 128.0
"""Growth of a process for other reasons: its first requests, buffers of gRPC."""
CLOSING_S = 15.0
"""How long an attack waits for the server to close connections that the attack left open."""


@pytest.fixture(scope="module")
def server(artifact: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Command]:
    with serving(tmp_path_factory.mktemp("command"), f"models.demo={artifact}", "scaling.min_replicas=1") as command:
        assert [ask(command) for _ in range(3)] == [200] * 3
        yield command


def ask(server: Command) -> int:
    """Status of an honest request; 0: it had no answer."""
    try:
        with server.client() as client:
            return client.post(CAPTIONS, **upload()).status_code
    except httpx2.HTTPError:
        return 0


@contextmanager
def repeated(request: Callable[[], object]) -> Iterator[None]:
    """A request again and again inside the ``with``."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(0.1):
            request()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def test_no_path_of_the_machine_is_answered_and_nothing_listens_for_others(server: Command, artifact: str) -> None:
    with server.client() as client:
        answers = [client.get(path) for path in ("/v1/models", "/v1/models/demo", "/metrics", "/openapi.json")]
        answers += [client.post(CAPTIONS, **upload(LARGE, stream=stream)) for stream in (False, True)]
    for answer in answers:
        assert answer.status_code == 200, answer.text
        assert str(Path(artifact).parents[1]) not in answer.text
    assert all('"sha256:' in answer.text for answer in (answers[0], answers[1], *answers[4:]))
    process = psutil.Process(server.process.pid)
    assert open_to_others(process) == answering_to_others(process) == []


def begin(server: Command, stack: ExitStack, length: int) -> socket.socket:
    """A connection with the head of a request whose body has this length."""
    connection = stack.enter_context(socket.create_connection(server.address, timeout=CLOSING_S))
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {length}\r\n\r\n".encode())
    return connection


def is_closed(connection: socket.socket) -> bool:
    """Whether the server has answered or closed the connection, which it does only after it has stopped reading."""
    connection.setblocking(False)
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True
    finally:
        connection.settimeout(CLOSING_S)
    return True


def replicas(server: Command, name: str) -> list[psutil.Process]:
    return descendants(psutil.Process(server.process.pid), f"ServeReplica:captions:{name}")


def front_mib(server: Command) -> float:
    """Memory (PSS: shared pages are divided among the processes that share them) of the front."""
    [front] = replicas(server, "Front")
    lines = Path(f"/proc/{front.pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def test_bodies_take_at_most_the_configured_memory_also_when_they_come_again(server: Command) -> None:
    """64 bodies of 32 MiB without their last byte."""

    def send(connection: socket.socket) -> None:
        with suppress(OSError):  # refused meanwhile
            for _ in range(31):
                connection.sendall(b" " * 2**20)
                if is_closed(connection):
                    break

    before, statuses = front_mib(server), set[int]()
    for _ in range(4):
        with repeated(lambda: statuses.add(ask(server))), ExitStack() as stack, ThreadPoolExecutor(64) as pool:
            list(pool.map(send, [begin(server, stack, 32 * 2**20) for _ in range(64)]))
            assert front_mib(server) - before < LIMITS.waiting_mib + SLACK_MIB
        assert ask(server) == 200
    assert statuses <= {200, 503}  # 503: other requests use all the memory


def test_an_answer_whose_replica_dies_ends_with_an_error(tmp_path: Path) -> None:
    """A thousand tokens take seconds; a replica that is killed after the first has not generated the last."""
    artifact = wrapped(tmp_path / "artifact", folder=endless(tmp_path / "model"))
    text, *images = conversation(*(url(picture(90, shade=shade)) for shade in (80, 140)))["messages"][0]["content"]
    messages: Any = [{"role": "user", "content": [*images, text]}]
    with (
        serving(tmp_path, f"models.vlm={artifact}", SETTINGS[0]) as command,
        openai.OpenAI(base_url=f"{command.url}/v1", api_key="none", max_retries=0) as chat,
    ):
        few = list(chat.chat.completions.create(model="vlm", messages=messages, max_tokens=5, stream=True))
        assert len([chunk for chunk in few if chunk.choices[0].delta.content]) > 2
        chunks = chat.chat.completions.create(model="vlm", messages=messages, max_tokens=1000, stream=True)
        while not next(chunks).choices[0].delta.content:
            pass
        for process in replicas(command, "Model"):
            process.kill()
        with pytest.raises(openai.APIError, match="the replica died during this request"):
            list(chunks)


def endless(folder: Path) -> Path:
    """The speaking model, but that it never comes to an end: its end token is as improbable as it was probable."""
    shutil.copytree(speaking_folder("qwen2_5_vl"), folder)
    base = BaseConfig(source=str(folder))
    model = load_model(folder, base)
    with torch.no_grad():
        model.get_output_embeddings().weight[find_base(base).family.tokenizer.eos_token_id] *= -1
    model.save_pretrained(folder)
    return folder


@contextmanager
def large_requests(command: Command) -> Iterator[list[Future[httpx2.Response]]]:
    """4 requests of 16 large pairs, all of them in progress; the last two are answered by streams."""

    def ask(stream: bool) -> httpx2.Response:
        with command.client() as client:
            return client.post(CAPTIONS, **upload(*[LARGE] * 16, stream=stream))

    with ThreadPoolExecutor(4) as threads, command.client() as client:
        asked = [threads.submit(ask, stream) for stream in (False, False, True, True)]
        until(lambda: "idc_pairs_waiting 64.0" in client.get("/metrics").text, "64 pairs are waiting")
        yield asked


def test_after_sigint_all_accepted_pairs_are_answered_and_new_requests_get_503(
    artifact: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the path of temporary files is long, as Slurm's: below it the paths of Ray's sockets would be too long."""
    (folder := tmp_path / ("t" * 100)).mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    late: list[httpx2.Response] = []

    def probe() -> None:
        with suppress(httpx2.HTTPError), command.client() as client:  # at last nothing listens any more
            late.append(client.get("/v1/models"))

    with serving(tmp_path, f"models.demo={artifact}", *SETTINGS) as command, large_requests(command) as asked:
        command.process.send_signal(signal.SIGINT)
        with repeated(probe):
            answers = [future.result() for future in asked]
            assert command.process.wait(PATIENCE_S) == 0, command.log.read_text()
    assert [answer.status_code for answer in answers] == [200] * 4
    for answer in answers[:2]:
        assert [result["error"] for result in answer.json()["results"]] == [None] * 16
    for answer in answers[2:]:
        assert (answer.text.count("event: result"), answer.text.count("event: done")) == (16, 1), answer.text[-500:]
    refused = [answer for answer in late if answer.status_code != 200]
    assert refused, "no request came between the signal and the end"
    for answer in refused:
        assert answer.status_code == 503, answer.text
        assert ErrorAnswer.model_validate_json(answer.content).error.code == "ending"
        assert int(answer.headers["retry-after"]) > 0


def test_a_failed_deployment_and_a_second_sigint_end_the_command(artifact: str, tmp_path: Path) -> None:
    broken = shutil.copytree(artifact, tmp_path / "broken")
    save_file({"another": torch.zeros(1)}, broken / "model.safetensors")
    failing = start(tmp_path, free_port(), f"models.demo={broken}")
    assert failing.process.wait(PATIENCE_S) == 1, failing.log.read_text()
    assert "the application cannot start" in failing.log.read_text()
    with serving(tmp_path, f"models.demo={artifact}", *SETTINGS) as command, large_requests(command):
        command.process.send_signal(signal.SIGINT)
        until(lambda: "accepted requests are answered first" in command.log.read_text(), "it drains")
        command.process.send_signal(signal.SIGINT)
        assert command.process.wait(PATIENCE_S) == 130
