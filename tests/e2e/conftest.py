"""Models, servers and failure logs that the end-to-end suites share."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import stack  # noqa: E402


def pytest_configure(config):
    config.addinivalue_line("markers", "long: no part of CI's share")


def pytest_sessionstart():
    if not stack.baton_binary().is_file():
        pytest.exit(f"no binary {stack.baton_binary()}: build it, or set BATON_BINARY", 3)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows what the servers said."""
    outcome = yield
    report = outcome.get_result()
    if report.failed:
        for process in stack.LIVE:
            report.sections.append((f"output of {process.name}", process.output[-4000:]))


@pytest.fixture(scope="session")
def small_model(tmp_path_factory):
    """A random model of a few layers: the hand-over is real, the words are not."""
    return stack.make_small_model(tmp_path_factory.mktemp("model") / "small.gguf")


@pytest.fixture(scope="session")
def real_model():
    if not stack.real_model().is_file():
        pytest.fail(f"no model {stack.real_model()}: tools/setup fetches it")
    return stack.real_model()
