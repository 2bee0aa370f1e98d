"""The prefix cache with real processes: the second turn of a chat computes and moves only what is new."""
import pytest
import stack

FLAGS = ["--threads", 1, "--max-num-batched-tokens", 64, "--enable-prefix-caching"]
BLOCK = 16
SOURCES = ("local_compute", "local_cache_hit", "external_kv_transfer")


def sources(instance):
    return {s: instance.metric("vllm:prompt_tokens_by_source_total", source=s) for s in SOURCES}


def grown(before, after):
    return {key: after[key] - before[key] for key in after}


@pytest.mark.parametrize("mode", ["push", "pull"])
def test_each_turn_of_a_chat_moves_only_what_is_new(small_model, mode):
    with stack.Stack(small_model, mode=mode, extra=FLAGS) as running, alone(small_model) as fresh:
        prefill, decode = running.prefill[0], running.decode[0]
        prompt = [5 + i % 90 for i in range(150)]
        seen_by_p = seen_by_d = 0  # tokens whose KV is there in whole blocks
        for turn in range(3):
            ask = {"prompt": prompt, "max_tokens": 21, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
            before = sources(prefill), sources(decode), running.bytes_moved()
            answer = stack.complete(running.port, **ask).json
            tokens = answer["choices"][0]["token_ids"]
            assert tokens == stack.complete(fresh.port, **ask).json["choices"][0]["token_ids"]
            running.wait_whole()
            p, d = grown(before[0], sources(prefill)), grown(before[1], sources(decode))
            new_to_p, new_to_d = len(prompt) - seen_by_p, len(prompt) - seen_by_d
            assert p == {"local_compute": new_to_p, "local_cache_hit": seen_by_p, "external_kv_transfer": 0}, turn
            assert d == {"local_compute": 0, "local_cache_hit": seen_by_d, "external_kv_transfer": new_to_d}, turn
            assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == seen_by_d
            moved = running.bytes_moved()[1] - before[2][1]
            blocks = -(-len(prompt) // BLOCK) - seen_by_d // BLOCK
            assert moved > 0 and moved % blocks == 0, (turn, moved, blocks)
            each = moved // blocks
            assert turn == 0 or each == last_each, "bytes a block"
            last_each = each
            seen_by_p = len(prompt) // BLOCK * BLOCK
            prompt = [*prompt, *tokens, *range(40 + turn, 70 + turn)]
            seen_by_d = (len(prompt) - 31) // BLOCK * BLOCK  # the last token that D sampled has no KV
        hits = [i.metric("vllm:prefix_cache_hits_total") for i in (prefill, decode)]
        assert min(hits) > 0 and hits[1] > hits[0], "D has its own answers, too"


ASK = {"prompt": [5 + i % 90 for i in range(150)], "max_tokens": 8, "temperature": 0, "ignore_eos": True}


def cached_in(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def streamed_usage(port, when_p_has_said):
    """P's first token comes with what it found in its cache."""
    events = iter(stack.Stream(port, "/v1/completions", {**ASK, "stream_options": {"include_usage": True}}))
    next(events)
    when_p_has_said()
    return [event["usage"] for event in events if event.get("usage")][-1]


def test_clients_are_told_what_prefill_found_where_decode_has_no_cache(small_model, tmp_path):
    """Push: P says it beside the hand-over, and a D that answers in no time would be ahead of it. So the KV cache waits."""
    hold = tmp_path / "hold"
    with stack.Stack(small_model, extra=FLAGS, decode_extra=["--no-enable-prefix-caching"],
                     prefill_env={"BATON_FAULT": f"hold_writes:{hold}"}) as running:
        for cached in (0, 144):
            hold.touch()
            assert cached_in(streamed_usage(running.port, hold.unlink)) == cached
            running.wait_whole()


def test_clients_are_told_what_prefill_found_in_pull(small_model):
    """P has said it before D is chosen."""
    with stack.Stack(small_model, mode="pull", extra=FLAGS, decode_extra=["--no-enable-prefix-caching"]) as running:
        for cached in (0, 144):
            assert cached_in(stack.complete(running.port, **ASK).json["usage"]) == cached
            running.wait_whole()
        assert cached_in(streamed_usage(running.port, lambda: None)) == 144


def alone(model):
    """One process without a cache and without a hand-over."""
    (port,) = stack.free_ports(1)
    process = stack.Instance("alone", model, port, "kv_both", 0, ["--threads", 1])
    at = process.arguments.index("--kv-transfer-config")
    del process.arguments[at:at + 2]
    return started(process)


class started:
    def __init__(self, process):
        self.process = process

    def __enter__(self):
        return self.process.start().wait_ready()

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
