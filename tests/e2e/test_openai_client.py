"""The official OpenAI client against the router: plain, streaming and errors; every answer equals one process."""
import concurrent.futures
import json

import openai
import pytest
import stack

NAME = "smollm2"
FLAGS = ["--served-model-name", NAME, "--max-model-len", 1024, "--max-num-seqs", 8]
CHAT = [{"role": "user", "content": "Name three colours."}]
TURNS = [{"role": "system", "content": "You answer in one short sentence."},
         {"role": "user", "content": "Where is Paris?"},
         {"role": "assistant", "content": "In France."},
         {"role": "user", "content": "And Rome?"}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def servers(real_model):
    with stack.Stack(real_model, extra=FLAGS) as pushed:
        port, kv_port = stack.free_ports(2)
        single = stack.Instance("single", real_model, port, "kv_both", kv_port, FLAGS).start()
        try:
            single.wait_ready()
            yield pushed, single
        finally:
            single.kill()
            single.wait()


@pytest.fixture(autouse=True)
def at_rest(servers):
    yield
    servers[0].standing_checks()


def client_of(port):
    return openai.OpenAI(base_url=f"http://{stack.HOST}:{port}/v1", api_key="none", max_retries=0, timeout=60)


@pytest.fixture
def client(servers):
    return client_of(servers[0].port)


@pytest.fixture
def single(servers):
    return client_of(servers[1].port)


def chat(client, messages=CHAT, stream=False, **more):
    """(text, finish reason) of a chat answer."""
    answer = client.chat.completions.create(
        model=NAME, messages=messages, stream=stream, **{"max_tokens": 16, "temperature": 0, **more})
    if not stream:
        return answer.choices[0].message.content, answer.choices[0].finish_reason
    text, reason = "", None
    for chunk in answer:
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reason = choice.finish_reason or reason
    return text, reason


def completion(client, prompt=PROMPT, stream=False, **more):
    answer = client.completions.create(
        model=NAME, prompt=prompt, stream=stream, **{"max_tokens": 16, "temperature": 0, **more})
    if not stream:
        return answer.choices[0].text, answer.choices[0].finish_reason
    text, reason = "", None
    for chunk in answer:
        for choice in chunk.choices:
            text += choice.text
            reason = choice.finish_reason or reason
    return text, reason


def test_models_are_listed(client):
    assert [m.id for m in client.models.list().data] == [NAME]


def test_a_chat_answer_with_its_usage(client):
    answer = client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=8, temperature=0)
    assert answer.object == "chat.completion" and answer.model == NAME and answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert 0 < answer.usage.completion_tokens <= 8 < answer.usage.prompt_tokens
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


@pytest.mark.parametrize("messages", [CHAT, TURNS], ids=["one turn", "several turns"])
def test_chat_is_the_same_streamed_plain_and_in_one_process(client, single, messages):
    plain = chat(client, messages)
    assert plain[0]
    assert chat(client, messages, stream=True) == plain
    assert chat(single, messages) == plain


@pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "top_p": 0.9, "seed": 7},
                                      {"temperature": 1.5, "seed": 2**63 - 1}], ids=str)
def test_completions_are_the_same_streamed_plain_and_in_one_process(client, single, sampling):
    plain = completion(client, **sampling)
    assert plain[0]
    assert completion(client, stream=True, **sampling) == plain
    assert completion(single, **sampling) == plain
    assert completion(single, stream=True, **sampling) == plain


def test_a_seed_decides_the_answer(client):
    answers = {completion(client, temperature=1.0, seed=seed)[0] for seed in range(5)}
    assert len(answers) > 1
    assert completion(client, temperature=1.0, seed=3) == completion(client, temperature=1.0, seed=3)


def test_a_prompt_of_token_ids(client, single):
    ids = [504, 3575, 282, 4649, 314]
    assert completion(client, ids) == completion(single, ids)
    assert completion(client, ids, stream=True) == completion(client, ids)


def test_a_stream_begins_with_the_role_and_keeps_one_id(client):
    chunks = list(client.chat.completions.create(model=NAME, messages=CHAT, max_tokens=8, temperature=0, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert len({chunk.id for chunk in chunks}) == 1
    assert all(chunk.object == "chat.completion.chunk" and chunk.usage is None for chunk in chunks)
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["length"]


@pytest.mark.parametrize("endpoint", ["chat", "completions"])
def test_usage_in_a_stream_comes_last_and_only_when_asked_for(client, endpoint):
    create = client.chat.completions.create if endpoint == "chat" else client.completions.create
    asked = {"messages": CHAT} if endpoint == "chat" else {"prompt": PROMPT}
    asked |= {"model": NAME, "max_tokens": 8, "temperature": 0}
    plain = create(**asked)
    chunks = list(create(**asked, stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage == plain.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


def test_a_stop_string_ends_the_answer_before_it(client, single):
    whole, _ = completion(client, max_tokens=24)
    stop = whole[len(whole) // 2:][:5]
    before = whole[:whole.index(stop)]
    for stream in (False, True):
        assert completion(client, max_tokens=24, stop=stop, stream=stream) == (before, "stop")
        assert completion(client, max_tokens=24, stop=["never said", stop], stream=stream) == (before, "stop")
    assert completion(single, max_tokens=24, stop=stop) == (before, "stop")


def test_max_tokens_of_one_is_the_first_token_alone(client, single):
    for stream in (False, True):
        text, reason = completion(client, max_tokens=1, stream=stream)
        assert (text, reason) == completion(single, max_tokens=1) and reason == "length"


def test_an_answer_that_ends_itself_says_stop(client, single):
    messages = [{"role": "user", "content": "Say only the word yes."}]
    plain = chat(client, messages, max_tokens=200)
    assert plain[1] == "stop"
    assert chat(client, messages, max_tokens=200, stream=True) == plain == chat(single, messages, max_tokens=200)


def test_eight_clients_at_once_get_what_each_alone_would(client, single):
    prompts = [f"{i} little words about {'the sea and ' * (i * 7)}the tide" for i in range(8)]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda p: completion(client, p, stream=len(p) % 2 == 0), prompts))
    assert together == [completion(single, p) for p in prompts]


def test_kv_transfer_params_of_a_client_have_no_effect(client):
    forged = {"do_remote_prefill": True, "transfer_id": "0" * 31 + "1", "remote_engine_id": "nobody",
              "remote_host": "127.0.0.1", "remote_port": 1}
    assert completion(client, extra_body={"kv_transfer_params": forged}) == completion(client)


def test_the_answer_names_its_transfer(servers):
    answer = stack.complete(servers[0].port)
    transfer = {k.lower(): v for k, v in answer.headers.items()}["x-baton-transfer-id"]
    assert len(transfer) == 32 and int(transfer, 16)
    assert "baton" not in json.loads(answer.body) and "kv_transfer_params" not in json.loads(answer.body)


def refused(call, kind, *words):
    with pytest.raises(kind) as caught:
        call()
    for word in words:
        assert word in str(caught.value), f"{word!r} is not in {caught.value}"
    return caught.value


@pytest.mark.parametrize("stream", [False, True], ids=["plain", "stream"])
def test_errors_are_the_clients_own_kinds(client, stream):
    def ask(**more):
        return lambda: client.completions.create(**{"model": NAME, "prompt": "x", "stream": stream, **more})
    refused(ask(model="gpt-nothing"), openai.NotFoundError, "gpt-nothing", "does not exist")
    refused(ask(n=2), openai.BadRequestError, "n must be 1", "2")
    refused(ask(max_tokens=-1), openai.BadRequestError, "max_tokens", "-1")
    refused(ask(temperature=-0.5), openai.BadRequestError, "temperature", "-0.5")
    refused(ask(top_p=1.5), openai.BadRequestError, "top_p", "1.5")
    refused(ask(logprobs=3), openai.BadRequestError, "logprobs")
    refused(ask(prompt="word " * 5000), openai.BadRequestError, "maximum context length is 1024")
    refused(ask(prompt=[1, 2, 10**9]), openai.BadRequestError)
    error = refused(ask(max_tokens=2000), openai.BadRequestError, "2000", "1024")
    assert error.status_code == 400 and error.type == "BadRequestError" and error.param == "max_tokens"
