"""What the other suites stand on: ports that two of them cannot take from each other."""
import multiprocessing
import socket

import pytest
import stack


def take(count, out, go_on):
    out.send(stack.free_ports(count))
    go_on.wait(60)


def test_processes_at_once_get_ports_of_their_own_and_none_of_the_kernels():
    context = multiprocessing.get_context("spawn")
    go_on, pipes, workers = context.Event(), [], []
    try:
        for _ in range(3):
            here, there = context.Pipe(False)
            workers.append(context.Process(target=take, args=(40, there, go_on), daemon=True))
            workers[-1].start()
            pipes.append(here)
        taken = [here.recv() if here.poll(60) else [] for here in pipes]
        taken.append(stack.free_ports(40))  # while all of them hold theirs
    finally:
        go_on.set()
        for worker in workers:
            worker.join(60)
    ports = [port for some in taken for port in some]
    assert len(ports) == len(set(ports)) == 160
    least, most = stack.outgoing_ports()
    assert not [port for port in ports if least <= port <= most]


def test_a_port_that_somebody_listens_on_is_passed_over():
    ports = stack.Ports()
    first = ports.take()
    with socket.socket() as other:
        # As servers do: connections of a suite before may linger on the port.
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind((stack.HOST, first + 1))
        other.listen()
        assert ports.take() == first + 2
    ports.lock.close()


def test_where_the_kernel_takes_all_ports_that_is_said(monkeypatch):
    monkeypatch.setattr(stack, "outgoing_ports", lambda: (1024, 65535))
    with pytest.raises(AssertionError, match="1024 to 65535"):
        stack.Ports().take()
