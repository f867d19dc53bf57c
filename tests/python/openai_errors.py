"""What the official `openai` package raises, and what it does about it: errors by kind, timeouts, retries."""

import threading
import time

import openai
from pydantic import BaseModel

from harness import MODEL, equal, raises, until
from openai_answers import ENDLESS, ask, check_freed, client

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


def a_client_that_comes_while_the_model_loads_is_told_and_served_once_it_tries_again(server):
    try:
        client(server).chat.completions.create(**ask("Say hi."))
    except openai.InternalServerError as error:
        equal((error.status_code, error.code, error.response.headers["retry-after"]), (503, "loading", "1"))
    raw = client(server, max_retries=200).chat.completions.with_raw_response.create(**ask("Say hi."))
    assert raw.parse().choices[0].message.content


def what_is_wrong_with_a_request_is_said_by_kind_code_and_parameter(server):
    chat = client(server).chat.completions.create
    error = raises(openai.BadRequestError, lambda: chat(**ask("word " * 9000)))
    equal(error.code, "context_length_exceeded")
    limit = client(server).models.retrieve(MODEL).max_model_len
    assert str(limit) in error.body["message"] and "90" in error.body["message"], error
    error = raises(openai.BadRequestError, lambda: chat(**ask("hi", temperature=-1)))
    equal((error.param, error.type), ("temperature", "invalid_request_error"))
    error = raises(openai.BadRequestError, lambda: chat(**ask([])))
    equal(error.param, "messages")
    error = raises(openai.UnprocessableEntityError, lambda: chat(**ask("hi", temperature="hot")))
    equal((error.status_code, error.param), (422, "temperature"))
    error = raises(openai.NotFoundError, lambda: chat(**ask("hi", model="gpt-x")))
    equal((error.code, error.param), ("model_not_found", "model"))
    assert "gpt-x" in error.message and MODEL in error.message, error
    raises(openai.NotFoundError, lambda: client(server).models.retrieve("gpt-x"))
    raises(openai.NotFoundError, lambda: client(server).embeddings.create(model=MODEL, input="hi"))
    error = raises(openai.AuthenticationError, lambda: client(server, api_key="sk-wrong").models.list())
    equal((error.status_code, error.code), (401, "invalid_api_key"))
    error = raises(openai.APIStatusError, lambda: chat(**ask("x" * (1 << 20))))
    equal(error.status_code, 413)
    late = {"firstlight": {"deadline_ms": 1}}
    error = raises(openai.APIStatusError, lambda: chat(**ask("hi", extra_body=late)))
    equal((error.status_code, error.code), (408, "deadline_exceeded"))


def what_is_not_built_is_refused_by_name(server):
    class Colour(BaseModel):
        name: str

    chat = client(server).chat.completions
    for param, call in [
        ("tools", lambda: chat.create(**ask("hi", tools=[TOOL]))),
        ("response_format", lambda: chat.parse(**ask("hi"), response_format=Colour)),
        ("response_format", lambda: chat.create(**ask("hi", response_format={"type": "json_object"}))),
        ("best_of", lambda: client(server).completions.create(model=MODEL, prompt="hi", best_of=2)),
        ("messages", lambda: chat.create(**ask([{"role": "user", "content": [IMAGE]}]))),
    ]:
        error = raises(openai.BadRequestError, call)
        equal((error.code, error.param), ("unsupported_parameter", param))


def a_client_whose_patience_ends_frees_its_slot(server):
    impatient = client(server, timeout=0.5)
    body = {**ask("Tell me a long story."), **ENDLESS, "extra_headers": {"x-request-id": "impatient"}}
    raises(openai.APITimeoutError, lambda: impatient.chat.completions.create(**body))
    check_freed(server, "impatient")


def a_full_queue_is_a_rate_limit_and_its_retry_after_is_kept(server):
    chat = client(server).chat.completions
    endless = {**ask("Tell me a long story."), **ENDLESS, "stream": True}
    running = [chat.create(**endless) for _ in range(2)]
    until("both slots are taken", lambda: server.last_step().get("decode_rows") == 2)
    answers = []
    brief = lambda: answers.append(chat.create(**ask("Say hi.", max_tokens=2)))
    waiting = [threading.Thread(target=brief) for _ in range(4)]
    [thread.start() for thread in waiting]
    until("four wait", lambda: server.last_step().get("waiting") == 4)
    error = raises(openai.RateLimitError, lambda: chat.create(**ask("Say hi.")))
    equal((error.code, error.response.headers["retry-after"]), ("server_busy", "1"))
    refused, patient = server.count(429), []

    def insist():
        began = time.monotonic()
        insisting = client(server, max_retries=50).chat.completions.with_raw_response
        raw = insisting.create(**ask("Say hi.", max_tokens=2))
        patient.append((raw.retries_taken, time.monotonic() - began))
        answers.append(raw.parse())

    waiting.append(threading.Thread(target=insist))
    waiting[-1].start()
    until("the patient one was refused", lambda: server.count(429) > refused)
    [stream.close() for stream in running]
    [thread.join() for thread in waiting]
    ((retries, seconds),) = patient
    assert retries >= 1 and seconds >= retries, f"{retries} times it waited {seconds} s: at least what it was told"
    equal([answer.usage.completion_tokens for answer in answers], [2] * 5)
    until("nobody is left", server.is_idle)


def while_it_stops_newcomers_are_turned_away_and_the_answer_under_way_is_whole(server):
    chat = client(server).chat.completions
    more = {"max_tokens": 40, "stream": True, "extra_body": {"ignore_eos": True}}
    stream = iter(chat.create(**{**ask("Count as far as you can."), **more}))
    texts = [next(stream), next(stream)]
    server.stop()
    error = raises(openai.InternalServerError, lambda: chat.create(**ask("Say hi.")))
    equal((error.status_code, error.code), (503, "shutting_down"))
    texts.extend(stream)
    equal(texts[-1].choices[0].finish_reason, "length")


BEFORE_READY = [a_client_that_comes_while_the_model_loads_is_told_and_served_once_it_tries_again]
CLAIMS = [
    what_is_wrong_with_a_request_is_said_by_kind_code_and_parameter,
    what_is_not_built_is_refused_by_name,
    a_client_whose_patience_ends_frees_its_slot,
    a_full_queue_is_a_rate_limit_and_its_retry_after_is_kept,
]
AT_THE_END = [while_it_stops_newcomers_are_turned_away_and_the_answer_under_way_is_whole]
