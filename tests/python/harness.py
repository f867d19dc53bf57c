"""The server as a script sees it beside its client, and how claims are run.

Whoever started the script has the server's process: a line `signal NAME` on stdout asks for a signal to it.

A claim is a function that raises where it is broken. Nothing is waited for by the clock alone: what must come is looked
at again until it is there, or until it is clear that it never comes.
"""

import json
import time
import traceback
import urllib.error
import urllib.request
from pathlib import Path

# Until then everything that is waited for has come, however busy the machine is.
PATIENCE_SECONDS = 240.0
LOOK_SECONDS = 0.01

MODEL = "smollm2-135m-instruct"
GOLDEN = Path(__file__).parent.parent / "golden" / "golden.json"


class Server:
    """Where it listens, and a key that it knows."""

    def __init__(self, address, key):
        self.root = f"http://{address}"
        self.base_url = f"{self.root}/v1"
        self.key = key

    def stop(self):
        """Asks for SIGTERM, and waits until it has come."""
        print("signal TERM", flush=True)
        until("it is stopping", lambda: self.fetch("/health")[0] == 503)

    def fetch(self, path):
        """Status and text of a GET, with the standard library alone."""
        headers = {"authorization": f"Bearer {self.key}"}
        try:
            with urllib.request.urlopen(urllib.request.Request(self.root + path, headers=headers)) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def get(self, path):
        status, text = self.fetch(path)
        return status, json.loads(text)

    def timeline(self, request_id):
        """The sealed timeline of a request that has one choice."""
        path = f"/v1/timelines/{request_id}"
        until(f"{request_id} is in the book", lambda: self.get(path)[0] == 200)
        (timeline,) = self.get(path)[1]["timelines"]
        return timeline

    def is_idle(self):
        report = self.get("/v1/report")[1]
        gauges = report["gauges"]
        busy = gauges["running"]["now"] or gauges["queue_depth"]["now"] or self.get("/health")[1]["open"]
        return not busy

    def last_step(self):
        steps = self.get("/v1/steps?last=1")[1]["steps"]
        return steps[0] if steps else {}

    def count(self, status):
        """How many calls of the API were answered with this status."""
        lines = self.fetch("/metrics")[1].splitlines()
        mine = [line for line in lines if line.startswith("firstlight_http_requests_total{")]
        return sum(int(line.rsplit(" ", 1)[1]) for line in mine if f'status="{status}"' in line)


def until(what, is_so):
    """Looks until it is so."""
    for _ in range(int(PATIENCE_SECONDS / LOOK_SECONDS)):
        if is_so():
            return
        time.sleep(LOOK_SECONDS)
    raise AssertionError(f"it never came to this: {what}")


def equal(got, expected, what=""):
    assert got == expected, f"{what}: {got!r} where {expected!r} was expected"


def raises(kind, call):
    """The exception of this kind that `call` raises."""
    try:
        answer = call()
    except Exception as error:  # noqa: BLE001: any other kind is what is looked for
        assert isinstance(error, kind), f"{type(error).__name__} where {kind.__name__} was expected: {error}"
        return error
    raise AssertionError(f"{kind.__name__} was expected, and there was an answer: {answer!r}")


def goldens():
    """The references, by name."""
    return {prompt["name"]: prompt for prompt in json.loads(GOLDEN.read_text())["prompts"]}


def check_sums(timeline):
    """The parts of a timeline sum to its wholes, to the nanosecond."""
    parts = timeline["parts"]
    leaves = lambda value: sum(map(leaves, value.values())) if isinstance(value, dict) else value
    equal(leaves(parts), timeline["parts_total"], "the parts sum to their total")
    if "ttft" in timeline:
        equal(timeline["parts_total"], timeline["ttft"], "the total is the TTFT")
    engine = ["inbox", "queue_wait", "requeue", "lost_prefill", "prefill"]
    equal(sum(leaves(parts[part]) for part in engine), timeline["engine_ttft"], "the engine's parts sum to its TTFT")


def run(claims, *arguments):
    """Runs all, tells each; how many were broken."""
    broken = 0
    for claim in claims:
        began = time.monotonic()
        try:
            claim(*arguments)
            verdict = "holds"
        except Exception:  # noqa: BLE001: every claim is to be told
            print(traceback.format_exc(), flush=True)
            verdict, broken = "IS BROKEN", broken + 1
        print(f"{claim.__module__}: {claim.__name__} {verdict} ({time.monotonic() - began:.2f} s)", flush=True)
    return broken
