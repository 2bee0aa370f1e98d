"""What the fuzzers begin with: small well-formed inputs, made here rather than kept, so that they follow the code."""
import json
import pathlib
import struct

GOLDEN = pathlib.Path(__file__).resolve().parent.parent / "golden"

# First bytes of control_fuzz's steps, and of their choices.
EXCHANGE, TO_P, TO_D, DROP, MAKE_UP_FOR_P, MAKE_UP_FOR_D, THROW, AGAIN, REGISTER, READY, EXPECT, ENGINE, FABRIC, TIME, LINKS = (
    0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)


def control():
    """Hand-overs in both orders, then the same with messages said again, cancels, breaks and silence between."""
    def register(transfer, tokens=7, begin=0, binding=0):
        return bytes([REGISTER, transfer, tokens, begin, binding])

    expect, ready = bytes([EXPECT, 1, 7]), bytes([READY, 1, 7, 1])
    connect, write = bytes([FABRIC, 3]), bytes([FABRIC, 0])
    second = bytes([TIME, 232, 3])
    push = register(1) + expect + bytes([EXCHANGE]) + connect + bytes([EXCHANGE]) + ready + write * 6 + bytes([EXCHANGE])
    ready_first = expect + ready + register(1) + bytes([EXCHANGE]) + connect + bytes([EXCHANGE]) + write * 6 + bytes([EXCHANGE])
    disturbances = [b"", second, bytes([ENGINE, 1, 0]), bytes([ENGINE, 1, 1]), bytes([ENGINE, 1, 3]), bytes([LINKS, 1]),
                    bytes([DROP]), register(1, binding=1), bytes([FABRIC, 1]), bytes([FABRIC, 4]), bytes([THROW, 0, 8]) + b"BTON\1\0\1\0",
                    *[bytes([AGAIN, which, 1, 24, 0, 255]) for which in range(8)],
                    *[bytes([MAKE_UP_FOR_P, kind, 16, 0]) + bytes(16) for kind in range(14)]]
    # D reads: of what P announced, of made-up blocks, under another announcement.
    read, as_announced, made_up, renamed = write, bytes([2]), bytes([0]), bytes([1])
    reads = [expect + ready + bytes([EXCHANGE]) + register(1) + how + bytes([EXCHANGE]) + connect + bytes([EXCHANGE])
             + read * 6 + bytes([EXCHANGE]) for how in (as_announced, made_up, renamed)]
    for kind in (0, 1, 2, 3):  # push and pull, by fabrics that complete on delivery and that count
        for flow in (push, ready_first) if kind < 2 else reads:
            yield bytes([kind]) + flow
            for at, disturbance in enumerate(disturbances):
                cut = 3 + at * 5 % (len(flow) - 3)
                yield bytes([kind]) + flow[:cut] + disturbance + flow[cut:] + second


def texts():
    for name in ("tokenizer_smollm2.tsv", "pretokenizer.tsv"):
        for line in (GOLDEN / name).read_text(encoding="utf-8").splitlines()[:400:5]:
            if line and not line.startswith("#"):
                yield line.split("\t")[0].encode("utf-8").decode("unicode_escape", "ignore").encode("utf-8", "ignore")[:300]


def tokenizer():
    for number, text in enumerate(texts()):
        yield bytes([number % 3, 2]) + text
        yield bytes([number % 3, 1]) + b"<|im_start|>" + text
    yield bytes([0, 0, 0, 5]) + b"terse" + bytes([1, 5]) + b"hello" + bytes([2, 2]) + b"ok"


def json_texts():
    completion = {"model": "m", "prompt": "Hello", "max_tokens": 4, "temperature": 0.5, "top_p": 0.9, "seed": 7, "stop": ["a", "b"],
                  "stream": True, "stream_options": {"include_usage": True}, "ignore_eos": True, "min_tokens": 1,
                  "return_token_ids": True, "n": 1, "logit_bias": None}
    for body in (completion, {**completion, "prompt": [1, 2, 3]}, {**completion, "prompt": ["one"]}, {"prompt": ""},
                 {"prompt": "x", "kv_transfer_params": {"do_remote_prefill": True, "transfer_id": "0" * 31 + "1", "remote_host": "h",
                                                        "remote_port": 1, "remote_engine_id": "p", "tp_size": 1}}):
        yield b"\0\0" + json.dumps(body).encode()
    messages = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "t"}]}]
    yield b"\0\1" + json.dumps({"messages": messages, "max_completion_tokens": 3, "stream": False}).encode()
    chunk = {"id": "cmpl-1", "object": "text_completion", "choices": [{"index": 0, "text": "a", "finish_reason": None}],
             "baton": {"first_token": True}}
    error = {"error": {"message": "m", "type": "t", "param": None, "code": 502, "baton": {"cause": "peer_died"}}}
    for event in (chunk, error, {"baton": {"prefilled": {"first_token": 5, "first_text": "x"}}},
                  {"baton": {"handover": {"outcome": "failed", "cause": "peer_died", "text": "t"}}}):
        yield b"\1\0" + json.dumps(event).encode()
    yield b"\1\1[DONE]"
    yield b"\2\3event: error\r\ndata: {\"a\":1}\r\ndata: two\n\n: comment\ndata:3\n\n"
    config = {"kv_connector": "BatonConnector", "kv_role": "kv_producer", "engine_id": "p", "kv_rank": 0, "kv_parallel_size": 1,
              "kv_buffer_device": "cpu", "kv_ip": "127.0.0.1", "kv_port": 5600, "kv_load_failure_policy": "recompute",
              "kv_connector_extra_config": {"backends": ["shm"], "kv_lease_duration": 30}}
    yield b"\3" + json.dumps(config).encode()


class Gguf:
    """A GGUF file, version 3, value by value."""
    UINT32, FLOAT32, BOOL, STRING, ARRAY, INT32 = 4, 6, 7, 8, 9, 5

    def __init__(self):
        self.values, self.count, self.tensors, self.data = b"", 0, [], b""

    @staticmethod
    def text(value):
        value = value.encode() if isinstance(value, str) else value
        return struct.pack("<Q", len(value)) + value

    def add(self, key, kind, payload):
        self.values += self.text(key) + struct.pack("<I", kind) + payload
        self.count += 1

    def array(self, key, kind, items):
        self.add(key, self.ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))

    def tensor(self, name, kind, dims, data):
        self.tensors.append(self.text(name) + struct.pack("<I", len(dims)) + struct.pack(f"<{len(dims)}Q", *dims)
                            + struct.pack("<IQ", kind, len(self.data)))
        self.data += data + bytes(-len(data) % 32)

    def bytes(self):
        head = b"GGUF" + struct.pack("<IQQ", 3, len(self.tensors), self.count) + self.values + b"".join(self.tensors)
        return head + bytes(-len(head) % 32) + self.data


def gguf():
    for architecture, pre in (("llama", "smollm"), ("qwen3", "qwen2")):
        file = Gguf()
        file.add("general.architecture", Gguf.STRING, Gguf.text(architecture))
        for key, value in (("block_count", 1), ("context_length", 64), ("embedding_length", 16), ("feed_forward_length", 16),
                           ("attention.head_count", 1), ("attention.head_count_kv", 1), ("attention.key_length", 16),
                           ("attention.value_length", 16), ("rope.dimension_count", 16), ("vocab_size", 6)):
            file.add(f"{architecture}.{key}", Gguf.UINT32, struct.pack("<I", value))
        file.add(f"{architecture}.attention.layer_norm_rms_epsilon", Gguf.FLOAT32, struct.pack("<f", 1e-5))
        file.add(f"{architecture}.rope.freq_base", Gguf.FLOAT32, struct.pack("<f", 1e4))
        file.add("tokenizer.ggml.model", Gguf.STRING, Gguf.text("gpt2"))
        file.add("tokenizer.ggml.pre", Gguf.STRING, Gguf.text(pre))
        file.array("tokenizer.ggml.tokens", Gguf.STRING, [Gguf.text(t) for t in ("H", "e", "l", "He", "\u0120w", "<|im_end|>")])
        file.array("tokenizer.ggml.token_type", Gguf.INT32, [struct.pack("<i", t) for t in (1, 1, 1, 1, 1, 3)])
        file.array("tokenizer.ggml.merges", Gguf.STRING, [Gguf.text("H e")])
        file.add("tokenizer.ggml.eos_token_id", Gguf.UINT32, struct.pack("<I", 5))
        file.add("tokenizer.ggml.add_bos_token", Gguf.BOOL, b"\0")
        file.add("tokenizer.chat_template", Gguf.STRING, Gguf.text("{{ messages }}"))
        file.tensor("output_norm.weight", 0, [16], bytes(64))
        file.tensor("token_embd.weight", 30, [16, 6], bytes(192))
        file.tensor("blk.0.attn_q.weight", 3, [32, 1], bytes(20))
        yield file.bytes()


ALL = {"control": control, "json": json_texts, "gguf": gguf, "tokenizer": tokenizer}


def write(name, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(ALL[name]()):
        (folder / f"seed-{number:03}").write_bytes(seed)
