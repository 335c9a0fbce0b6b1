"""Stores for tests: HTTP servers on loopback that give a folder's files, well or badly, as they are told."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

Fault = Callable[["Answer", str], bool]  # says whether it has answered
STALL_S = 20.0


@dataclass
class Served:
    """A store that runs."""

    url: str
    folder: Path
    fault: Fault | None = None  # asked before each answer
    asked: Counter[str] = field(default_factory=Counter)  # requests by the name of a file
    ended: threading.Event = field(default_factory=threading.Event)


class Answer(BaseHTTPRequestHandler):
    """Answers as object stores do: a file, or the part of it that is asked for."""

    protocol_version = "HTTP/1.1"
    timeout = 30
    served: Served

    def log_message(self, *_: object) -> None:
        pass

    def do_HEAD(self) -> None:
        path = self.served.folder / self.path.partition("?")[0].rpartition("/")[2]
        self.send_response(200 if path.is_file() else 404)
        self.send_header("Content-Length", str(path.stat().st_size if path.is_file() else 0))
        self.end_headers()

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].rpartition("/")[2]
        self.served.asked[name] += 1
        if self.served.fault is not None and self.served.fault(self, name):
            return
        path = self.served.folder / name
        if not path.is_file():
            self.send(404, self.error_body("NoSuchKey"))
            return
        data = path.read_bytes()
        asked = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if asked is None:
            self.send(200, data)
        elif int(asked[1]) >= len(data):
            self.send(416, self.error_body("InvalidRange"))
        else:
            begin, end = int(asked[1]), min(int(asked[2]) + 1, len(data))
            self.send(206, data[begin:end], {"Content-Range": f"bytes {begin}-{end - 1}/{len(data)}"})

    def send(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def error_body(self, code: str) -> bytes:
        """An error as S3 has it; over plain HTTP nobody reads it."""
        return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{code}</Message></Error>'.encode()


@contextmanager
def serving(folder: Path, path: str = "") -> Iterator[Served]:
    """Give a store of the files of a folder."""
    handler = type("Answer", (Answer,), {})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # who was asked hangs up where a request takes too long
    served = handler.served = Served(f"http://127.0.0.1:{server.server_port}/{path}", folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="store", daemon=False)
    thread.start()
    try:
        yield served
    finally:
        served.ended.set()
        server.shutdown()
        thread.join()
        server.server_close()


def first(count: int, fault: Fault, only: str = ".tar") -> Fault:
    """A fault of the first requests for files with such an end."""
    left = [count]
    lock = threading.Lock()

    def answered(answer: Answer, name: str) -> bool:
        with lock:
            if not name.endswith(only) or left[0] <= 0:
                return False
            left[0] -= 1
        return fault(answer, name)

    return answered


def always(fault: Fault, only: str) -> Fault:
    """A fault of all requests for files with such an end."""
    return first(1 << 30, fault, only)


def busy(answer: Answer, name: str) -> bool:
    answer.send(503, answer.error_body("SlowDown"))
    return True


def refused(answer: Answer, name: str) -> bool:
    answer.send(403, answer.error_body("AccessDenied"))
    return True


def absent(answer: Answer, name: str) -> bool:
    answer.send(404, answer.error_body("NoSuchKey"))
    return True


def whole(answer: Answer, name: str) -> bool:
    """Send all of a file, whatever part was asked for."""
    answer.send(200, (answer.served.folder / name).read_bytes())
    return True


def silent(answer: Answer, name: str) -> bool:
    """Take the request and say nothing until the test is over."""
    answer.served.ended.wait(STALL_S)
    answer.close_connection = True
    return True


def stalls_within(answer: Answer, name: str) -> bool:
    """Send the head and some bytes, and then nothing."""
    answer.send_response(206)
    answer.send_header("Content-Length", "100000")
    answer.end_headers()
    answer.wfile.write(bytes(100))
    answer.wfile.flush()
    return silent(answer, name)


def cut(answer: Answer, name: str) -> bool:
    """Promise more bytes than are sent, and hang up."""
    answer.send_response(206)
    answer.send_header("Content-Length", "100000")
    answer.end_headers()
    answer.wfile.write(bytes(100))
    answer.wfile.flush()
    answer.close_connection = True
    return True


def wrong(answer: Answer, name: str) -> bool:
    """Send as many bytes as are asked for, and others."""
    begin, end = map(int, re.findall(r"\d+", answer.headers["Range"]))
    answer.send(206, bytes(end + 1 - begin), {"Content-Range": f"bytes {begin}-{end}/*"})
    return True


def slow(answer: Answer, name: str) -> bool:
    time.sleep(0.15)
    return False
