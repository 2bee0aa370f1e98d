"""What is asked of the servers in a round, and whether each request ended as it must."""
import contextlib
import random

import stack

PROMPTS = 24
PROMPT_TOKENS_MAX = 600
ANSWER_TOKENS_MAX = 100
# Causes of a router that refuses before a pair was chosen, and so has none to name. One that was just started has not heard
# of its instances yet.
BEFORE_A_PAIR = ("no_prefill_instance", "no_decode_instance", "router_stopping")


def bodies():
    """The requests that rounds choose from: the same ones each run, greedy and seeded."""
    rng = random.Random(7)
    found = []
    for number in range(PROMPTS):
        tokens = rng.choice([1, 15, 16, 17, rng.randint(18, 100), rng.randint(100, PROMPT_TOKENS_MAX)])
        prompt = [rng.randint(32, 120) for _ in range(tokens)]
        if number % 4 == 3:  # begins as an earlier one, so that a part of it is in the prefix caches
            prompt[:tokens * 2 // 3] = found[number // 2]["prompt"][:tokens * 2 // 3]
        body = {"prompt": prompt, "max_tokens": rng.randint(1, ANSWER_TOKENS_MAX)}
        if number % 3 == 2:
            body |= {"temperature": 0.8, "seed": number}
        found.append(body)
    return found


def expected_answers(model, flags):
    """What one instance without any hand-over answers to each."""
    port, kv_port = stack.free_ports(2)
    plain = stack.Instance("plain", model, port, "kv_both", kv_port, flags)
    at = plain.arguments.index("--kv-transfer-config")
    del plain.arguments[at:at + 2]
    plain.start()
    try:
        plain.wait_ready()
        answers = []
        for body in bodies():
            client = stack.Client(port, body, False).finish()
            assert client.complete and len(client.tokens) == body["max_tokens"], f"plain: {client.error} {client.broken!r}"
            answers.append(client.tokens)
        return answers
    finally:
        plain.kill()
        plain.wait()


def error_of(client):
    """(how a request ended that has an error, what that error does not say or "")."""
    baton = client.error.get("baton") or {}
    if client.status == 503 and baton.get("cause") in BEFORE_A_PAIR:
        return f"error: {baton['cause']}", ""
    missing = stack.unexplained(client)
    return f"error: {baton.get('cause')}", f"{missing}: {client.error}" if missing else ""


class Asked:
    """One request of a round."""

    def __init__(self, number, router, body, expected, stream, start, leave):
        self.number, self.router, self.body, self.expected = number, router, body, expected
        self.stream, self.start, self.leave = stream, start, leave
        self.client, self.began, self.left = None, None, False

    def begin(self, now):
        self.began = now
        with contextlib.suppress(ConnectionRefusedError):
            self.client = stack.Client(self.router.port, self.body, self.stream)

    def go_away(self):
        if self.client is not None and self.client.is_alive():
            self.left = True
            self.client.leave()

    def end(self, router_killed):
        """(how it ended, what is wrong with that or "")."""
        client = self.client
        if client is None:
            return "not begun", "" if router_killed else "the router refuses connections"
        if client.tokens != self.expected[:len(client.tokens)]:
            return "wrong tokens", f"tokens {client.tokens}, right are {self.expected}"
        if client.complete:
            whole = client.tokens == self.expected
            return "answered", "" if whole else f"the answer ended after {len(client.tokens)} of {len(self.expected)} tokens"
        if self.left:
            return "client left", ""
        if client.error is not None:
            return error_of(client)
        return "connection broken", "" if router_killed else f"status {client.status}, {client.broken!r}"
