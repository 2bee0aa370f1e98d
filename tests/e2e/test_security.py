"""The hand-over with keys between real processes, where instances listen and connect to, and the public reports of security kind."""
import os
import socket

import pytest

import stack

USAGE = 2


@pytest.fixture()
def key_file(tmp_path):
    def write(name, identity="pool-1"):
        path = tmp_path / name
        path.touch(0o600)
        path.write_text(f"{identity}:{os.urandom(32).hex()}\n")
        return path
    return write


def test_a_shared_key_secures_the_hand_over(small_model, key_file):
    extra = ["--threads", 1, "--kv-psk-file", key_file("pool.psk")]
    with stack.Stack(small_model, extra=extra) as servers:
        assert stack.complete(servers.port).status == 200
        prefill, decode = servers.prefill[0], servers.decode[0]
        assert decode.metric("baton_handovers_total", side="decode", outcome="done") == 1
        prefill.wait_says("secured by the pre-shared key pool-1")
        # Noise and a peer without TLS are turned away, counted, and disturb nobody.
        for noise in (b"BTON" + bytes(100), bytes([0x16]) * 500, b"GET / HTTP/1.1\r\n\r\n"):
            with socket.create_connection((stack.HOST, prefill.kv_port), 5) as stranger:
                stranger.sendall(noise)
                stranger.settimeout(10)
                while stranger.recv(4096):
                    pass
        stack.wait_for("three strangers are counted",
                       lambda: prefill.metric("baton_unauthenticated_peers_total") == 3)
        assert stack.complete(servers.port).status == 200
        servers.standing_checks()


def test_unlike_keys_are_explained_to_the_client(small_model, key_file):
    common = ["--threads", 1]
    with stack.Stack(small_model, extra=common, prefill_extra=["--kv-psk-file", key_file("one.psk")],
                     decode_extra=["--kv-psk-file", key_file("two.psk", "pool-2")]) as servers:
        answer = stack.complete(servers.port)
        assert answer.status == 502, answer.body
        assert "no secure connection" in answer.json["error"]["message"] or "TLS: " in answer.json["error"]["message"]
        for instance in servers.instances:
            stack.wait_for(f"{instance.name} counts the stranger",
                           lambda i=instance: i.metric("baton_unauthenticated_peers_total") >= 1)
            instance.wait_at_rest()


def test_an_open_control_channel_needs_keys_or_the_word_insecure(small_model, key_file):
    def instance(extra, config):
        return stack.Instance("p", small_model, stack.free_ports(1)[0], "kv_producer", 0, ["--threads", 1, *extra], config)

    refused = instance([], {"kv_ip": "0.0.0.0"}).start()
    assert refused.wait(30) == USAGE
    assert "can be reached by other hosts" in refused.output and "insecure" in refused.output, refused.output
    for extra, warned in [(["--insecure"], True), (["--kv-psk-file", key_file("pool.psk")], False)]:
        process = instance(extra, {"kv_ip": "0.0.0.0"}).start()
        try:
            process.wait_ready()
        finally:
            process.kill()
            process.wait()  # with it all that it said has been read
        assert ("peers are not authenticated" in process.output) == warned, process.output


def test_an_open_http_listener_is_warned_about(small_model):
    process = stack.Instance("p", small_model, stack.free_ports(1)[0], "kv_producer", 0,
                             ["--threads", 1, "--host", "0.0.0.0"]).start()
    try:
        process.wait_ready()
        process.wait_says("the HTTP server listens on 0.0.0.0")
    finally:
        process.kill()
        process.wait()


def test_B51_the_address_of_a_peer_in_a_request_connects_nobody(small_model):
    """Client-sent transfer parameters: R drops them; D takes only peers that it was given."""
    ports = stack.free_ports(1)
    with socket.create_server((stack.HOST, 0)) as trap, \
            stack.Stack(small_model, extra=["--threads", 1],
                        decode_extra=["--kv-allowed-peers", f"{stack.HOST}:{ports[0]}", "10.9.0.0/16"]) as servers:
        trap.settimeout(0.3)
        params = {"do_remote_prefill": True, "transfer_id": "00000000000000000000000000000abc",
                  "remote_engine_id": "prefill-0", "remote_host": stack.HOST, "remote_port": trap.getsockname()[1]}
        body = {"prompt": "Whose keys?", "max_tokens": 2, "kv_transfer_params": params}
        decode = servers.decode[0]
        for host in (stack.HOST, "localhost", "169.254.169.254", "metadata.internal"):
            params["remote_host"] = host
            answer = stack.request(decode.port, "POST", "/v1/completions", body, timeout=30)
            assert answer.status == 400, f"{answer.status}: {answer.body}"
            assert host in answer.json["error"]["message"] and "allowed peers" in answer.json["error"]["message"]
        params["remote_host"] = stack.HOST
        stack.request(servers.port, "POST", "/v1/completions", body, timeout=30)
        with pytest.raises(TimeoutError):
            trap.accept()
        decode.wait_at_rest()
