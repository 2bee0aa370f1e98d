"""The servers say what happened: records, joined traces, failure lines, and a doctor."""
import json
import re
import signal
import subprocess

import pytest
import stack
from test_kill import hold, slow_model, flags_with_patience, PROMPT, writing, names_the_cause  # noqa: F401

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
SPAN_ID = "b7ad6b7169203331"


@pytest.fixture(scope="module")
def pair(small_model):
    with stack.Stack(small_model, extra=["--max-num-batched-tokens", 64, "--threads", 1]) as running:
        yield running
        running.standing_checks()


@pytest.fixture(scope="module")
def pull_pair(small_model):
    with stack.Stack(small_model, mode="pull", extra=["--max-num-batched-tokens", 64, "--threads", 1]) as running:
        yield running
        running.standing_checks()


def ask(port, headers=None, stream=True, prompt=tuple(range(5, 205))):
    client = stack.Stream(port, "/v1/completions", {"prompt": list(prompt), "max_tokens": 4, "temperature": 0,
                                                    "ignore_eos": True}, headers=headers) if stream else None
    if stream:
        assert client.status == 200
        list(client)
        assert client.done
        return client.headers
    answer = stack.request(port, "POST", "/v1/completions", {"prompt": list(prompt), "max_tokens": 4}, headers)
    assert answer.status == 200, answer.body
    return {k.lower(): v for k, v in answer.headers.items()}


def records(servers, transfer):
    """The records of router, P and D; P's comes with its last completion, which may be after D's answer."""
    def find(port):
        return stack.wait_for(f"a record on {port}", lambda: stack.request(
            port, "GET", f"/debug/transfers?id={transfer}").json["transfers"])[-1]
    return find(servers.port), find(servers.prefill[0].port), find(servers.decode[0].port)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
def test_three_records_of_one_transfer_agree(pair, stream):
    headers = ask(pair.port, {"traceparent": f"00-{TRACE_ID}-{SPAN_ID}-01", "X-Request-Id": "mine-7"}, stream)
    transfer = headers["x-baton-transfer-id"]
    router, prefill, decode = records(pair, transfer)
    assert [r["side"] for r in (router, prefill, decode)] == ["router", "prefill", "decode"]
    assert {r["transfer_id"] for r in (router, prefill, decode)} == {transfer}
    assert {r["trace_id"] for r in (router, prefill, decode)} == {TRACE_ID}
    assert headers["traceparent"].split("-")[1:3] == [TRACE_ID, router["span_id"]]
    assert router["parent_span_id"] == SPAN_ID
    assert prefill["parent_span_id"] == router["prefill"]["span_id"] != router["decode"]["span_id"]
    assert decode["parent_span_id"] == router["decode"]["span_id"]
    for record in (router, prefill, decode):
        assert "mine-7" in record["request_id"], record
    assert router["end"] == "answered" and prefill["outcome"] == decode["outcome"] == "done"
    assert prefill["peer"] == decode["engine_id"] and decode["peer"] == prefill["engine_id"]
    assert prefill["bytes"] == decode["bytes"] > 0 and prefill["fabric"] == decode["fabric"] != ""
    assert prefill["writes"] > 0 and decode["registrations"] == 1

    p, d, r = prefill["times"], decode["times"], router["times"]
    assert 0 < r["arrived"] <= router["prefill"]["times"]["dispatched"] <= p["submitted"] <= p["started"]
    assert p["started"] <= p["first_step"] <= p["pieces_ready"][0] <= p["pieces_ready"][-1]
    assert len(p["pieces_ready"]) >= 3, "a prompt of several steps is ready piece by piece"
    assert p["ready"] <= p["first_write"] <= p["last_byte"] <= p["told"] <= p["ended"]
    assert router["decode"]["times"]["dispatched"] <= d["submitted"] <= d["started"]
    assert 0 < d["registered"] <= p["registered"]
    assert 0 < d["last_byte"] and 0 < d["final_came"] and max(d["last_byte"], d["final_came"]) <= d["told"]
    assert d["told"] <= d["second_token"] <= d["last_token"] <= d["ended"] <= r["ended"]
    assert r["arrived"] <= r["first_byte"] <= r["ended"]


# Nothing comes to P in pull that would name what D reads by: it knows who took up which offer.
def test_both_sides_name_the_fabric_of_a_pull(pull_pair):
    transfer = ask(pull_pair.port)["x-baton-transfer-id"]
    _, prefill, decode = records(pull_pair, transfer)
    assert prefill["outcome"] == decode["outcome"] == "done"
    assert prefill["bytes"] == decode["bytes"] > 0 and prefill["fabric"] == decode["fabric"] == "shm"


@pytest.mark.parametrize("bad", ["", "garbage", f"00-{TRACE_ID.upper()}-{SPAN_ID}-01", "00-" + "0" * 32 + f"-{SPAN_ID}-01",
                                 "00-" + "a" * 5000, f"ff-{TRACE_ID}-{SPAN_ID}-01"])
def test_a_broken_traceparent_is_replaced(pair, bad):
    headers = ask(pair.port, {"traceparent": bad})
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", headers["traceparent"])
    router, prefill, _ = records(pair, headers["x-baton-transfer-id"])
    assert router["parent_span_id"] == "" and router["trace_id"] == prefill["trace_id"] != TRACE_ID


def test_the_joined_trace_loads_nests_and_adds_up(pair):
    transfer = ask(pair.port)["x-baton-transfer-id"]
    records(pair, transfer)
    trace = stack.request(pair.port, "GET", f"/debug/trace?id={transfer}").json
    assert trace["otherData"]["prefill"] == trace["otherData"]["decode"] == "same host, same clock"
    events = trace["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"}
    assert names == {1: "router", 2: "prefill prefill-0", 3: "decode decode-0"}
    lanes = {}
    for event in events:
        assert event["ph"] in "XMisf" and isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "X":
            assert event["dur"] >= 0
            lanes.setdefault((event["pid"], event["tid"]), []).append(
                (event["ts"], event["ts"] + event["dur"], event["name"]))
    eps = 0.002  # microseconds, of the rounding of doubles
    for lane, spans in lanes.items():
        for a in spans:
            for b in spans:
                apart = a[1] <= b[0] + eps or b[1] <= a[0] + eps
                nested = (a[0] <= b[0] + eps and b[1] <= a[1] + eps) or (b[0] <= a[0] + eps and a[1] <= b[1] + eps)
                assert apart or nested, f"{lane}: {a} and {b}"
    for pid in (1, 2, 3):
        request = [s for s in lanes[pid, 1] if s[2] == "request"]
        phases = [s for s in lanes[pid, 1] if s[2] != "request"]
        assert len(request) == 1 and len(phases) >= 2
        assert abs(sum(s[1] - s[0] for s in phases) - (request[0][1] - request[0][0])) < 0.1
    whole = [s for s in lanes[1, 1] if s[2] == "request"][0]
    for pid in (2, 3):
        side = [s for s in lanes[pid, 1] if s[2] == "request"][0]
        assert whole[0] <= side[0]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) >= 5
    for key, start in starts.items():
        assert start["ts"] <= ends[key]["ts"] + eps, f"an effect before its cause: {start} {ends[key]}"


def test_a_trace_without_a_record_is_404_and_without_a_leg_says_so(small_model):
    with stack.Stack(small_model, extra=["--threads", 1]) as servers:
        assert stack.request(servers.port, "GET", "/debug/trace?id=" + "a" * 32).status == 404
        transfer = ask(servers.port)["x-baton-transfer-id"]
        servers.prefill[0].kill()
        servers.prefill[0].wait()
        trace = stack.request(servers.port, "GET", f"/debug/trace?id={transfer}").json
        assert "missing" in trace["otherData"]["prefill"] and trace["otherData"]["decode"].startswith("same host")


def fields(line):
    return {k: v.strip('"') for k, v in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)}


def failure_lines(process):
    return [fields(line) for line in process.output.splitlines() if ": failure cause=" in line]


def test_one_line_a_failure_on_each_side_with_both_ids(slow_model, hold):  # noqa: F811
    with stack.Stack(slow_model, extra=flags_with_patience(60), prefill_env={"BATON_FAULT": f"hold_writes:{hold}"}) as servers:
        with writing(servers, hold, False) as client:
            stack.wait_for("P has computed the prompt",
                           lambda: servers.prefill[0].about()["requests"]["running"] == 0)
            servers.prefill[0].kill()
            client.finish()
            names_the_cause(client, servers)
        transfer = client.error["baton"]["transfer_id"]
        for process in (servers.router, servers.decode[0]):
            def said(p=process):
                return [line for line in failure_lines(p) if line.get("transfer") == transfer]

            def ends(p=process):
                return [line for line in said(p) if line.get("then") != "decode_decides"]
            stack.wait_for(f"{process.name} has said how it ended", ends)
            assert len(ends()) == 1, said()
            for line in said():
                assert line["request"] and line["cause"], line
                assert "prefill-0" in line["prefill"] and "decode-0" in line["decode"], line
        router = [line for line in failure_lines(servers.router) if line.get("transfer") == transfer]
        decode = [line for line in failure_lines(servers.decode[0]) if line.get("transfer") == transfer]
        assert router[0]["request"] in decode[0]["request"], "the same request on both"
        assert decode[0]["cause"] == client.error["baton"]["cause"] == "peer_died"
        assert servers.decode[0].metric("baton_failures_total", cause="peer_died") >= 1


def doctor(*arguments, limit=60):
    run = subprocess.run([str(stack.baton_binary()), "doctor", *map(str, arguments)], capture_output=True, text=True,
                         timeout=limit, check=False)
    return run.returncode, run.stdout, run.stderr


def url(port):
    return f"http://{stack.HOST}:{port}"


def test_the_doctor_finds_a_healthy_pair_healthy(pair):
    code, out, err = doctor(url(pair.prefill[0].port), url(pair.decode[0].port), "--router", url(pair.port))
    assert code == 0, out + err
    assert " FAIL" not in out and "handshake" in out and "0 failed" in out
    assert re.search(r"^ok +router's instances .*prefill-0.*decode-0", out, re.M), out
    code, out, _ = doctor(url(pair.prefill[0].port), url(pair.decode[0].port), "--json")
    report = json.loads(out)
    assert code == 0 and report["ok"]
    by_name = {c["name"]: c for c in report["checks"]}
    assert by_name["handshake"]["verdict"] == "ok", by_name["handshake"]
    assert by_name["side channel"]["verdict"] == "ok"
    pair.prefill[0].wait_at_rest()


def test_the_doctor_finds_what_does_not_fit(small_model, pair):
    ports = stack.free_ports(2)
    other = stack.Instance("other", small_model, ports[0], "kv_consumer", ports[1],
                           ["--block-size", 32, "--threads", 1, "--dtype", "float32"]).start()
    try:
        other.wait_ready()
        code, out, _ = doctor(url(pair.prefill[0].port), url(other.port), "--json", "--router", url(pair.port))
        checks = {c["name"]: c for c in json.loads(out)["checks"]}
        assert code == 1
        for name in ("block size", "KV dtype", "handshake"):
            assert checks[name]["verdict"] == "fail" and checks[name]["remedy"], checks[name]
        assert "16" in checks["block size"]["found"] and "32" in checks["block size"]["found"]
        assert "refused" in checks["handshake"]["found"], checks["handshake"]
        assert checks["router's models"]["verdict"] == "ok", "they are called alike"
        assert "decode other is not among them" in checks["router's instances"]["found"], checks["router's instances"]
    finally:
        other.kill()
    code, out, _ = doctor(url(pair.decode[0].port), url(pair.prefill[0].port))
    assert code == 1 and "role" in out and "-> kv_role kv_producer" in out
    assert doctor("nonsense", url(pair.decode[0].port))[0] == 2
    assert doctor(url(pair.prefill[0].port))[0] == 2


def test_the_doctor_never_hangs(pair):
    prefill = pair.prefill[0]
    prefill.kill(signal.SIGSTOP)
    try:
        code, out, _ = doctor(url(prefill.port), url(pair.decode[0].port), "--timeout", 0.5, limit=30)
        assert code == 1 and "took too long" in out, out
    finally:
        prefill.kill(signal.SIGCONT)
    pair.wait_router_ready()
