"""What LangChain's OpenAI client gets from the server."""

import asyncio

import openai
from langchain_core.exceptions import ContextOverflowError
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI

from harness import MODEL, equal, goldens, raises
from openai_answers import golden_chat


def chat(server, **more):
    settings = {"model": MODEL, "temperature": 0, "max_tokens": 48, "max_retries": 0, **more}
    return ChatOpenAI(base_url=server.base_url, api_key=server.key, **settings)


def conversation(name):
    return [(message["role"], message["content"]) for message in golden_chat(name)[0]]


def invoke_gives_the_golden_chat_and_what_it_cost(server):
    for name in ["chat_gravity", "chat_multi"]:
        _, prompt_tokens, text, tokens = golden_chat(name)
        answer = chat(server).invoke(conversation(name))
        equal(answer.content, text)
        usage = answer.usage_metadata
        equal((usage["input_tokens"], usage["output_tokens"]), (prompt_tokens, tokens))
        equal(answer.response_metadata["finish_reason"], "stop")


def streams_add_up_to_the_same(server):
    _, prompt_tokens, text, tokens = golden_chat("chat_gravity")
    chunks = list(chat(server, stream_usage=True).stream(conversation("chat_gravity")))
    assert len(chunks) > 10, "it comes in pieces"
    whole = sum(chunks[1:], chunks[0])
    equal((whole.content, whole.usage_metadata["total_tokens"]), (text, prompt_tokens + tokens))


def batches_and_async_calls_run_side_by_side(server):
    names = ["chat_gravity", "chat_multi"]
    expected = [golden_chat(name)[2] for name in names]
    answers = chat(server).batch([conversation(name) for name in names])
    equal([answer.content for answer in answers], expected)

    async def both():
        calls = [chat(server).ainvoke(conversation(name)) for name in names]
        return [answer.content for answer in await asyncio.gather(*calls)]

    equal(asyncio.run(both()), expected)


def stop_strings_and_logprobs_are_passed_on(server):
    text = golden_chat("chat_gravity")[2]
    answer = chat(server).invoke(conversation("chat_gravity"), stop=["concept"])
    equal(answer.content, text.split("concept")[0])
    answer = chat(server, logprobs=True, top_logprobs=2, max_tokens=3).invoke([HumanMessage("Say hi.")])
    equal(len(answer.response_metadata["logprobs"]["content"]), 3)


def completions_are_the_golden_ones(server):
    golden = goldens()["capital"]
    settings = {"model": MODEL, "temperature": 0, "max_tokens": 8, "max_retries": 0}
    text = OpenAI(base_url=server.base_url, api_key=server.key, **settings).invoke(golden["source"])
    assert text and golden["greedy_text"].startswith(text), text


def tools_are_refused_by_name(server):
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return "sunny"

    bound = chat(server).bind_tools([weather])
    error = raises(openai.BadRequestError, lambda: bound.invoke("What is the weather in Paris?"))
    equal((error.code, error.param), ("unsupported_parameter", "tools"))
    assert "tools is not supported" in error.message, error


def a_prompt_that_is_too_long_is_known_as_such(server):
    raises(ContextOverflowError, lambda: chat(server).invoke("word " * 9000))


CLAIMS = [
    invoke_gives_the_golden_chat_and_what_it_cost,
    streams_add_up_to_the_same,
    batches_and_async_calls_run_side_by_side,
    stop_strings_and_logprobs_are_passed_on,
    completions_are_the_golden_ones,
    tools_are_refused_by_name,
    a_prompt_that_is_too_long_is_known_as_such,
]
