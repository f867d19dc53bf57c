"""What the official `openai` package gets from the server: answers, streams, log-probabilities, timelines."""

import asyncio
import functools
import math

from openai import AsyncOpenAI, OpenAI

from harness import MODEL, check_sums, equal, goldens, until

# Longer than anything that is read to its end here.
ENDLESS = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}


@functools.cache
def client(server, **more):
    """One for all calls: making one reads the machine's certificates."""
    return OpenAI(**{"base_url": server.base_url, "api_key": server.key, "max_retries": 0, **more})


def ask(messages, **more):
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 12, **more}


def golden_chat(name):
    """Messages, prompt tokens, and the answer up to its end token, of a golden chat."""
    golden = goldens()[name]
    text = golden["greedy_text"].split("<|im_end|>")[0]
    return golden["source"], golden["n_prompt"], text, golden["first_eos_at"] + 1


def models_are_listed_and_found(server):
    openai = client(server)
    (model,) = openai.models.list().data
    equal((model.id, model.object, model.owned_by), (MODEL, "model", "firstlight"))
    equal(openai.models.retrieve(MODEL), model)


def chats_are_the_golden_ones(server):
    for name in ["chat_gravity", "chat_multi"]:
        messages, prompt_tokens, text, tokens = golden_chat(name)
        answer = client(server).chat.completions.create(**ask(messages, max_tokens=48))
        (choice,) = answer.choices
        equal((choice.message.content, choice.finish_reason), (text, "stop"), name)
        equal(choice.message.role, "assistant")
        usage = answer.usage
        # The end token was generated too.
        equal((usage.prompt_tokens, usage.completion_tokens), (prompt_tokens, tokens), name)
        equal(usage.total_tokens, prompt_tokens + tokens)
        assert answer.object == "chat.completion" and answer.id and answer.created and answer.system_fingerprint


def completions_of_several_prompts_are_the_golden_ones(server):
    names = ["capital", "code", "numbers_ws", "hello"]
    prompts = [goldens()[name] for name in names]
    expected = [prompt["greedy_text"] for prompt in prompts]
    tokens = 16
    more = {"model": MODEL, "temperature": 0, "max_tokens": tokens}
    answer = client(server).completions.create(prompt=[prompt["source"] for prompt in prompts], **more)
    equal([choice.index for choice in answer.choices], [0, 1, 2, 3])
    for name, text, choice in zip(names, expected, answer.choices):
        assert choice.text and text.startswith(choice.text), f"{name}: {choice.text!r} does not begin {text!r}"
        equal(choice.finish_reason, "length")
    equal(answer.usage.prompt_tokens, sum(prompt["n_prompt"] for prompt in prompts))
    equal(answer.usage.completion_tokens, tokens * len(names))
    by_ids = client(server).completions.create(prompt=prompts[0]["input_ids"], **more)
    equal(by_ids.choices[0].text, answer.choices[0].text, "token ids are a prompt too")
    pieces = client(server).completions.create(prompt=prompts[0]["source"], stream=True, **more)
    equal("".join(piece.choices[0].text for piece in pieces), answer.choices[0].text, "streamed")


def check_stream(chunks, name):
    """Role first, then text, then the end, then what it cost."""
    _, prompt_tokens, text, tokens = golden_chat(name)
    first, *middle, end, usage = chunks
    equal((first.choices[0].delta.role, first.choices[0].delta.content), ("assistant", ""))
    equal("".join(chunk.choices[0].delta.content for chunk in middle), text, name)
    equal({chunk.choices[0].finish_reason for chunk in [first, *middle]}, {None})
    equal(end.choices[0].finish_reason, "stop")
    equal((usage.choices, usage.usage.prompt_tokens, usage.usage.completion_tokens), ([], prompt_tokens, tokens))
    equal({chunk.id for chunk in chunks}, {first.id}, "one stream has one id")
    equal({chunk.usage for chunk in chunks[:-1]}, {None})


def streams_are_the_golden_chats(server):
    body = ask(golden_chat("chat_gravity")[0], max_tokens=48, stream=True, stream_options={"include_usage": True})
    check_stream(list(client(server).chat.completions.create(**body)), "chat_gravity")
    # The helper that folds a stream into a message.
    with client(server).chat.completions.stream(**ask(golden_chat("chat_multi")[0], max_tokens=48)) as stream:
        kinds = {event.type for event in stream}
        equal(stream.get_final_completion().choices[0].message.content, golden_chat("chat_multi")[2])
    assert {"chunk", "content.delta", "content.done"} <= kinds, kinds


def the_async_client_streams_side_by_side(server):
    async def one(openai, name):
        body = ask(golden_chat(name)[0], max_tokens=48, stream=True, stream_options={"include_usage": True})
        check_stream([chunk async for chunk in await openai.chat.completions.create(**body)], name)

    async def both():
        async with AsyncOpenAI(base_url=server.base_url, api_key=server.key, max_retries=0) as openai:
            await asyncio.gather(one(openai, "chat_gravity"), one(openai, "chat_multi"))

    asyncio.run(both())


def check_freed(server, request_id):
    until("the slot is free", server.is_idle)
    timeline = server.timeline(request_id)
    equal(timeline["finish_reason"], "disconnected")
    tokens = timeline["tokens"]
    assert tokens["generated"] < 4000 and tokens["after_disconnect"] <= 1, tokens


def a_stream_that_is_closed_early_frees_its_slot(server):
    body = {**ask("Tell me a long story."), **ENDLESS, "stream": True}
    stream = client(server).chat.completions.create(**body, extra_headers={"x-request-id": "closed"})
    pieces = (chunk.choices[0].delta.content for chunk in stream)
    assert next(piece for piece in pieces if piece)
    equal(server.is_idle(), False)
    stream.close()
    check_freed(server, "closed")

    async def leave():
        async with AsyncOpenAI(base_url=server.base_url, api_key=server.key) as openai:
            stream = await openai.chat.completions.create(**body, extra_headers={"x-request-id": "left"})
            async for chunk in stream:
                if chunk.choices[0].delta.content:
                    break
            await stream.close()

    asyncio.run(leave())
    check_freed(server, "left")


def raw_responses_have_headers_and_ids(server):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"x-request-id": "raw-1", "traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    raw = client(server).chat.completions.with_raw_response.create(**ask("Say hi.", extra_headers=headers))
    equal((raw.status_code, raw.headers["content-type"]), (200, "application/json"))
    equal((raw.headers["x-request-id"], raw.request_id, raw.retries_taken), ("raw-1", "raw-1", 0))
    answer, again = raw.parse(), client(server).chat.completions.create(**ask("Say hi."))
    equal(answer._request_id, "raw-1")
    equal(answer.choices[0].message.content, again.choices[0].message.content)
    equal(server.timeline("raw-1")["trace_id"], trace)


def logprobs_are_the_references(server):
    golden = goldens()["capital"]
    more = {"model": MODEL, "temperature": 0, "max_tokens": 1, "logprobs": 5}
    logprobs = client(server).completions.create(prompt=golden["source"], **more).choices[0].logprobs
    (top,) = logprobs.top_logprobs
    likely = sorted(top.values(), reverse=True)
    equal(len(likely), 5)
    # A difference of log-probabilities is one of logits, which the reference has; keys and values are rounded to f16 here.
    for mine, logit in zip(likely, golden["top20_logits"]):
        difference = (mine - likely[0]) - (logit - golden["top20_logits"][0])
        assert abs(difference) < 1e-2, f"{likely} against {golden['top20_logits'][:5]}"
    assert logprobs.token_logprobs == [likely[0]] and sum(map(math.exp, likely)) < 1, logprobs
    body = ask("Say hi.", logprobs=True, top_logprobs=3)
    choice = client(server).chat.completions.create(**body).choices[0]
    for entry in choice.logprobs.content:
        alternatives = [(other.token, other.logprob) for other in entry.top_logprobs]
        equal(alternatives[0], (entry.token, entry.logprob), "greedy takes the likeliest")
        equal(alternatives, sorted(alternatives, key=lambda pair: -pair[1]))
        assert len(alternatives) == 3 and entry.logprob <= 0
    said = b"".join(bytes(entry.bytes) for entry in choice.logprobs.content)
    equal(said.decode(), choice.message.content, "the bytes of the tokens are the text")
    streamed = client(server).chat.completions.create(**body, stream=True)
    chunks = [chunk.choices[0].logprobs for chunk in streamed]
    equal([e for lp in chunks if lp for e in lp.content], choice.logprobs.content, "streamed")


def choices_differ_where_they_are_drawn_and_a_seed_draws_them_again(server):
    def texts(**more):
        answer = client(server).chat.completions.create(**ask("Tell me something.", n=2, **more))
        equal([choice.index for choice in answer.choices], [0, 1])
        return [choice.message.content for choice in answer.choices]

    first, second = texts()
    equal(first, second, "greedy choices are alike")
    drawn = texts(temperature=1.3, seed=11)
    assert drawn[0] != drawn[1], drawn
    equal(texts(temperature=1.3, seed=11), drawn, "the same seed draws the same")
    assert texts(temperature=1.3, seed=12) != drawn


def stop_strings_and_biases_count(server):
    golden = goldens()["capital"]
    openai = client(server)
    more = {"model": MODEL, "prompt": golden["source"], "temperature": 0}
    choice = openai.completions.create(**more, max_tokens=24, stop=["never said", "The answer"]).choices[0]
    equal((choice.text, choice.finish_reason), (golden["greedy_text"].split("The answer")[0], "stop"))
    likeliest, second = golden["top20_ids"][:2]
    bias = {"firstlight": {"trace": True}}
    tokens = lambda logit_bias: openai.completions.create(
        **more, max_tokens=2, logit_bias=logit_bias, extra_body=bias
    ).firstlight["token_ids"]
    equal(tokens({})[0], likeliest)
    equal(tokens({str(likeliest): -100})[0], second)
    equal(tokens({str(second): 100}), [second, second])


def timelines_come_with_the_answer(server):
    trace = {"firstlight": {"trace": True}}
    golden = goldens()["chat_gravity"]
    answer = client(server).chat.completions.create(**ask(golden["source"], extra_body=trace))
    equal(answer.firstlight["token_ids"], golden["greedy_ids"][:12])
    timeline = answer.firstlight["timeline"]
    check_sums(timeline)
    equal(timeline["tokens"]["prompt"], golden["n_prompt"])
    streamed = client(server).chat.completions.create(**ask(golden["source"], stream=True, extra_body=trace))
    last = list(streamed)[-1]
    check_sums(last.firstlight["timeline"])
    equal(last.firstlight["token_ids"], golden["greedy_ids"][:12])


CLAIMS = [
    models_are_listed_and_found,
    chats_are_the_golden_ones,
    completions_of_several_prompts_are_the_golden_ones,
    streams_are_the_golden_chats,
    the_async_client_streams_side_by_side,
    a_stream_that_is_closed_early_frees_its_slot,
    raw_responses_have_headers_and_ids,
    logprobs_are_the_references,
    choices_differ_where_they_are_drawn_and_a_seed_draws_them_again,
    stop_strings_and_biases_count,
    timelines_come_with_the_answer,
]
