"""Measures one server under a burst: eight prompts of 67 tokens at once on four slots, answers of 32 tokens.

    python server.py NAME THREADS

starts the server on a free port of this machine, warms it up with another prompt, sends all eight from eight connections
through the API that it shares with OpenAI's, streams, and prints one line a figure, NAME=VALUE, times in milliseconds:

    first, slowest_first    from a prompt's sending to the first piece of its answer: the mean, the most
    wall                    from the first sending to the last token
    prompt_tokens, tokens   of all eight, as the server counts them
    queue, compute          of ours, out of its timelines: what of the mean is waiting for a slot, what is prefill
    version, backend        what was measured, on what

What cannot be measured prints `failed=` and a sentence. FIRSTLIGHT_MODEL_FILE is the model, FIRSTLIGHT_BINARY the program
`firstlight`, FIRSTLIGHT_PEERS_BUILD the folder in which llama.cpp was built, FIRSTLIGHT_PEERS_VERSION what
that is called. Invariant: it ends the server that it started.
"""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from statistics import mean

HERE = Path(__file__).parent
SLOTS = 4
BURST = 8
TOKENS = 32
PROMPT_TOKENS = 67
#: Seconds that a server may take to load, and an answer to come.
LIMIT = 540


def environment(name):
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"{name} is not set; run `cargo xtask peers`")
    return value


def free_port():
    with socket.socket() as asked:
        asked.bind(("127.0.0.1", 0))
        return asked.getsockname()[1]


class NoDevice(Exception):
    """llama-server found no device, and may find one if it is told to."""


class Firstlight:
    """Ours."""

    #: What it is asked beside what all are: to tell its timeline, whose parts are the split.
    beside = {"firstlight": {"trace": True}}

    def command(self, port, _threads):
        words = ["serve", "--port", str(port), "--slots", str(SLOTS)]
        return [environment("FIRSTLIGHT_BINARY"), *words]

    def check(self, _log):
        """It says itself what it runs on, and refuses where there is nothing."""

    def told(self, log, _threads):
        version = subprocess.run([self.command(0, 0)[0], "--version"], capture_output=True, text=True, check=True).stdout
        adapter = re.search(r" on (.+?): ", log)
        return {"version": version.split()[-1], "backend": adapter[1] if adapter else "adapter unknown"}


class LlamaServer:
    """llama-server, built from the source that llama-cpp-python brings."""

    beside = {"cache_prompt": False}

    def __init__(self, gpu):
        self.gpu = gpu

    def command(self, port, threads):
        program = Path(environment("FIRSTLIGHT_PEERS_BUILD")) / "bin" / ("llama-server.exe" if os.name == "nt" else "llama-server")
        words = ["--host", "127.0.0.1", "--port", str(port), "--model", environment("FIRSTLIGHT_MODEL_FILE")]
        words += ["--parallel", str(SLOTS), "--ctx-size", str(SLOTS * 512), "--cache-ram", "0", "--threads", str(threads)]
        # At this verbosity its log tells where the weights went.
        return [str(program), *words, "--n-gpu-layers", "999" if self.gpu else "0", "--log-verbosity", "4"]

    def check(self, log):
        """It passes over drivers that run on the CPU, in silence, unless it is told to take the first device."""
        if not self.gpu or re.search(r"Vulkan\d* model buffer size", log):
            return
        if "GGML_VK_VISIBLE_DEVICES" in os.environ:
            raise RuntimeError("llama-server put no weights on a Vulkan device")
        raise NoDevice

    def told(self, log, threads):
        where = f"CPU, {threads} threads"
        if self.gpu:
            device = re.search(r"using device Vulkan\d* \((.+?)\) \(", log)
            where = f"Vulkan: {device[1] if device else 'device unknown'}"
        return {"version": environment("FIRSTLIGHT_PEERS_VERSION"), "backend": where}


SERVERS = {
    "firstlight-serve": Firstlight,
    "llama-server-cpu": lambda: LlamaServer(gpu=False),
    "llama-server-vulkan": lambda: LlamaServer(gpu=True),
}


class Exchange:
    """One streamed completion: its instants, its usage, and the timeline of ours."""

    def __init__(self, port, prompt, tokens, beside):
        self.start, self.first, self.end = 0.0, None, 0.0
        self.usage, self.timeline = {}, None
        body = {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            **beside,
        }
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=LIMIT)
        connection.connect()
        self.ask = lambda: self.exchange(connection, json.dumps(body))

    def exchange(self, connection, body):
        self.start = time.perf_counter()
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise RuntimeError(f"the server answered {answer.status}: {answer.read(500).decode(errors='replace')}")
        for line in answer:
            if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
                continue
            piece = json.loads(line[6:])
            if any(choice.get("text") for choice in piece.get("choices", [])):
                self.end = time.perf_counter()
                self.first = self.first or self.end
            self.usage = piece.get("usage") or self.usage
            self.timeline = (piece.get("firstlight") or {}).get("timeline") or self.timeline
        connection.close()
        if self.first is None:
            raise RuntimeError("an answer had no text")


def ready(process, port, log):
    """Waits until the server answers that it is well."""
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}: {last_line(log)}")
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server was not ready after {LIMIT} s")


def last_line(log):
    lines = [line for line in Path(log).read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"


def burst(port, texts, beside):
    """All at once, each on a connection that is open already."""
    exchanges = [Exchange(port, text, TOKENS, beside) for text in texts]
    failures, together = [], threading.Barrier(len(exchanges))

    def ask(exchange):
        try:
            together.wait()
            exchange.ask()
        except Exception as error:  # It is told below, by the thread that may.
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(exchange,)) for exchange in exchanges]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return exchanges


def figures_of(exchanges):
    waits = [(one.first - one.start) * 1e3 for one in exchanges]
    counted = {name: sum(one.usage.get(name, 0) for one in exchanges) for name in ("prompt_tokens", "completion_tokens")}
    if counted != {"prompt_tokens": BURST * PROMPT_TOKENS, "completion_tokens": BURST * TOKENS}:
        raise RuntimeError(f"the server counts other tokens than it was asked: {counted}")
    figures = {
        "first": mean(waits),
        "slowest_first": max(waits),
        "wall": (max(one.end for one in exchanges) - min(one.start for one in exchanges)) * 1e3,
        "prompt_tokens": counted["prompt_tokens"],
        "tokens": counted["completion_tokens"],
    }
    timelines = [one.timeline for one in exchanges if one.timeline]
    if timelines:
        parts = [timeline["parts"] for timeline in timelines]
        figures["queue"] = mean(sum(part["queue_wait"].values()) for part in parts) / 1e6
        figures["compute"] = mean(sum(part["prefill"].values()) for part in parts) / 1e6
    return figures


def measure(server, threads):
    rows = json.loads((HERE / "prompts.json").read_text(encoding="utf-8"))
    texts = [row["text"] for row in rows]
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        with log.open("wb") as out:
            command = server.command(port, threads)
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT)
        try:
            ready(process, port, log)
            server.check(log.read_text(errors="replace"))
            Exchange(port, texts[BURST], 2, server.beside).ask()
            exchanges = burst(port, texts[:BURST], server.beside)
            told = server.told(log.read_text(errors="replace"), threads)
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    return {**figures_of(exchanges), **told}


def main(name, threads):
    try:
        try:
            figures = measure(SERVERS[name](), threads)
        except NoDevice:
            os.environ["GGML_VK_VISIBLE_DEVICES"] = "0"
            figures = measure(SERVERS[name](), threads)
    except Exception as error:  # Whatever a server does wrong is its row's reason.
        sentence = next(iter(str(error).strip().splitlines()), "") or type(error).__name__
        figures = {"failed": sentence}
    for key, value in figures.items():
        print(f"{key}={value:.4f}" if isinstance(value, float) else f"{key}={value}")


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in SERVERS:
        raise SystemExit(f"{__doc__}\nNAME is one of {', '.join(SERVERS)}")
    main(sys.argv[1], int(sys.argv[2]))
