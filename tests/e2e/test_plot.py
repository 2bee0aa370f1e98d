"""`baton plot` over made-up results: figures and page as headless Chromium draws them, refusals, and text of strangers."""
import html.parser
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree

import pytest
import stack
import sweep_files as files

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = "</script><script>document.body.dataset.hacked=1</script><img src=x onerror=\"document.body.dataset.hacked=1\">&amp;'\"{{page.js}}"


def plot(results, *flags, ok=True, env=None):
    command = [stack.baton_binary(), "plot", "--results-dir", results, *flags]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=240,
                          env={**os.environ, **(env or {})})
    assert "Traceback" not in done.stderr and done.returncode >= 0, done.stderr
    if ok:
        assert done.returncode == 0, done.stdout + done.stderr
    return done


def page_only(results, out, *flags):
    """Without Chromium: for tests that open the page themselves."""
    done = plot(results, "--out", out, *flags, ok=False, env={"BATON_CHROMIUM": "/nowhere/chromium"})
    assert (out / "plot.html").is_file(), done.stderr
    return out / "plot.html"


class Elements(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.all, self.text, self.open = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.all.append((tag, dict(attrs)))
        self.open.append(dict(attrs).get("id"))

    def handle_endtag(self, tag):
        if self.open:
            self.open.pop()

    def handle_data(self, data):
        self.text.setdefault(self.open[-1] if self.open else None, []).append(data)

    def with_class(self, name):
        return [a for _, a in self.all if name in (a.get("class") or "").split()]

    def body(self):
        return next(a for tag, a in self.all if tag == "body")

    def text_of(self, element_id):
        return "".join(self.text.get(element_id, []))


def opened(page, tmp_path, address="", script=None):
    """The document after the page's scripts ran, and what its console said."""
    if script is not None:
        copy = tmp_path / "scripted.html"
        copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"<script>{script}</script></body>"), encoding="utf-8")
        page = copy
    command = [os.environ.get("BATON_CHROMIUM", "chromium"), "--headless", "--disable-gpu", "--disable-quic", "--no-first-run",
               "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
               "--enable-logging=stderr", "--window-size=1300,900", f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom",
               *(["--no-sandbox"] if os.geteuid() == 0 else []), page.resolve().as_uri() + address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return Elements(done.stdout), console


def texts_of(svg):
    return list(xml.etree.ElementTree.parse(svg).getroot().iter(SVG + "text"))


def drawn(document):
    return sorted(int(a["data-result"]) for a in document.with_class("result"))


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    """Three modes, four rates, two iterations; and both of the article's figures made of it."""
    folder = tmp_path_factory.mktemp("grid") / "results"
    count = files.write_grid(folder, ("local", "engine-loop-pull", "push"), (1, 2, 4, 8), (1024, 4096, 16384), iterations=(1, 2))
    done = plot(folder, "--metric", "ttft,tpot", "--out", folder.parent / "out")
    return folder, folder.parent / "out", count, done


def test_the_page_draws_every_result_and_says_nothing_on_the_console(grid, tmp_path):
    _, out, count, _ = grid
    document, console = opened(out / "plot.html", tmp_path)
    assert console == []
    assert "data-fault" not in document.body()
    assert drawn(document) == list(range(count))
    assert document.body()["data-drawn"] == str(count)
    assert len(document.with_class("panel")) == 4
    assert "emulated: qwen3-32b-tp8-h200, bytes / 64" in document.text_of("emulated")


def test_both_figures_exist_with_a_panel_a_rate(grid):
    _, out, count, done = grid
    for name in ("ttft_mean", "tpot_mean"):
        assert name in done.stdout
        svg = xml.etree.ElementTree.parse(out / f"{name}.svg").getroot()
        assert svg.tag == SVG + "svg"
        text = [t.text for t in svg.iter(SVG + "text")]
        assert [t for t in text if t and t.endswith(" req/s")] == ["1 req/s", "2 req/s", "4 req/s", "8 req/s"]
        assert len([g for g in svg.iter(SVG + "g") if g.get("class") == "panel"]) == 4
        assert len([e for e in svg.iter() if e.get("class") == "result"]) == count
        assert len([e for e in svg.iter() if e.get("class") == "whisker"]) == count / 2
        assert "emulated: qwen3-32b-tp8-h200, bytes / 64" in text
        assert {"local", "engine-loop-pull", "push", "input length (tokens)"} <= set(text)
        png = (out / f"{name}.png").read_bytes()
        assert png[:8] == b"\x89PNG\r\n\x1a\n"
        width, height = struct.unpack(">II", png[16:24])
        assert (width, height) == (2 * int(svg.get("width")), 2 * int(svg.get("height")))


def test_a_point_stands_where_its_value_is(tmp_path):
    """Where the axis has its value; the ratio of the two is written beside them."""
    for mode, ttft in (("engine-loop-pull", 1744.0), ("push", 545.0)):
        content = files.result(mode, 8, 16384)
        content["mean_ttft_ms"] = ttft
        files.write(tmp_path / "results", content)
    plot(tmp_path / "results", "--out", tmp_path)
    svg = xml.etree.ElementTree.parse(tmp_path / "ttft_mean.svg").getroot()
    panel = next(g for g in svg.iter(SVG + "g") if g.get("class") == "panel")
    floor = max(float(m) for p in panel.iter(SVG + "path") for m in re.findall(r"^M0 0V([\d.]+)H", p.get("d", "")))
    square, circle = [e.get("d") for e in panel.iter() if e.get("class") == "result"]
    top = float(re.match(r"M[\d.]+ ([\d.]+)h", square)[1])           # upper edge
    side = float(re.search(r"h([\d.]+)v", square)[1])
    height_pull = floor - (top + side / 2)
    height_push = floor - float(re.match(r"M[\d.]+ ([\d.]+)a", circle)[1])
    label = next(t for t in panel.iter(SVG + "text") if t.text == "1,500")
    height_of_tick = floor - (float(label.get("y")) - 4)  # a label's baseline lies 4 below its line
    assert height_pull / height_of_tick * 1500 == pytest.approx(1744, rel=0.01)
    assert height_push / height_of_tick * 1500 == pytest.approx(545, rel=0.02)
    assert [e.text for e in panel.iter() if e.get("class") == "ratio"] == ["3.2×"]


@pytest.mark.parametrize("modes, over", [
    (("threaded-pull", "engine-loop-pull-merged", "published-push-merged", "push"), "engine-loop-pull-merged"),
    (("engine-loop-pull-merged", "engine-loop-pull", "push"), "engine-loop-pull"),
    (("threaded-pull", "published-push-merged", "push"), "threaded-pull"),
])
def test_the_ratio_is_the_published_pull_over_push(tmp_path, modes, over):
    files.write_grid(tmp_path / "a", modes, (8,))
    document, console = opened(page_only(tmp_path / "a", tmp_path / "out"), tmp_path)
    assert console == []
    assert f"n× = {over} / push at the longest input" in "".join(document.text[None])


@pytest.mark.parametrize("metric", ["second-token", "goodput", "handover"])
def test_other_metrics_leave_out_a_mode_that_has_none(grid, tmp_path, metric):
    folder, _, count, _ = grid
    page = page_only(folder, tmp_path, "--metric", metric, "--stat", "p90")
    document, console = opened(page, tmp_path)
    assert console == []
    assert len(drawn(document)) == (count * 2 // 3 if metric == "handover" else count)


def test_a_chosen_point_is_explained(grid, tmp_path):
    _, out, count, _ = grid
    document, console = opened(out / "plot.html", tmp_path, f"#point={count - 1}")
    assert console == []
    text = "".join("".join(parts) for parts in document.text.values())
    for words in ("Hand-over, mean of each part", "queue at D", "queue at P", "hand-over: register wait", "hand-over: first step", "decode slots used",
                  "31 % busy", "P holds blocks", "67,108,864 moved, 67,108,864 expected", "Single requests", "req-5"):
        assert words in text, words
    assert len(document.with_class("span")) == 10  # the time line of one request
    assert "Time to first token, mean of each part" in text and not re.search(r"of it [\d.,]+ in no part", text)
    # Two modes with a hand-over: five parts of the whole, and the queue and six parts of the hand-over, each.
    assert len(document.with_class("phase")) == 2 * 5 + 2 * 7


def test_what_the_parts_leave_of_the_hand_over_is_shown(tmp_path):
    content = files.result("push")
    content["baton"]["handover_ms"]["total"]["mean"] += 7.0
    files.write(tmp_path / "a", content)
    document, console = opened(page_only(tmp_path / "a", tmp_path / "out"), tmp_path, "#point=0")
    assert console == []
    assert len(document.with_class("phase")) == 5 + 8
    assert "of it 7 in no part" in "".join("".join(parts) for parts in document.text.values())


def test_a_first_token_of_p_has_no_hand_over_in_its_time(tmp_path):
    content = files.result("push")
    parts = content["baton"]["handover_ms"]
    content["baton"]["first_token"] = "prefill"
    parts["first_token"]["mean"] = content["mean_ttft_ms"] - sum(parts[key]["mean"] for key in ("front_end", "prefill_queue", "prefill")) - 9
    files.write(tmp_path / "a", content)
    document, console = opened(page_only(tmp_path / "a", tmp_path / "out"), tmp_path, "#point=0")
    assert console == []
    assert len(document.with_class("phase")) == 5 + 7  # four parts and what is in none; the hand-over stands by itself
    assert "of it 9 in no part" in "".join("".join(parts) for parts in document.text.values())


SWITCH = """
for (const [id, value] of [["metric", "tpot"], ["stat", "p99"], ["theme", "dark"]]) document.getElementById(id).value = value;
document.querySelector("input[value=log]").checked = true;
document.getElementById("same-y").checked = false;
document.getElementById("controls").dispatchEvent(new Event("change"));
"""


def test_the_switches_draw_all_points_again(grid, tmp_path):
    _, out, count, _ = grid
    document, console = opened(out / "plot.html", tmp_path, script=SWITCH)
    assert console == []
    assert drawn(document) == list(range(count))
    assert document.text_of("title") == "Time per output token (TPOT), p99"
    assert dict(next(a for tag, a in document.all if tag == "html"))["data-theme"] == "dark"


CLICK = """
queueMicrotask(() => queueMicrotask(() => {
  const over = document.querySelector(".u-over"), mark = over.querySelector("[data-result]");
  const box = mark.getBoundingClientRect();
  const at = {clientX: box.left + box.width / 2, clientY: box.top + box.height / 2, bubbles: true};
  over.dispatchEvent(new MouseEvent("mousemove", at));
  document.body.dataset.tip = String(!document.getElementById("tip").hidden);
  over.dispatchEvent(new MouseEvent("click", at));
}));
"""


def test_pointer_and_click_find_a_point(grid, tmp_path):
    _, out, _, _ = grid
    document, console = opened(out / "plot.html", tmp_path, script=CLICK)
    assert console == []
    assert document.body()["data-tip"] == "true"
    assert len(document.with_class("chosen")) >= 1
    assert "Single requests" in "".join("".join(parts) for parts in document.text.values())


def test_the_page_asks_the_network_for_nothing(grid):
    _, out, _, _ = grid
    page = Elements((out / "plot.html").read_text(encoding="utf-8"))
    for tag, attributes in page.all:
        for key in ("src", "href", "action", "data", "srcset"):
            assert attributes.get(key, "data:,").startswith("data:"), (tag, attributes)
    assert any("default-src 'none'" in a.get("content", "") for tag, a in page.all if tag == "meta")


def test_void_points_are_crosses_outside_of_line_and_average(tmp_path):
    folder = tmp_path / "results"
    count = files.write_grid(folder, inputs=(1024, 2048, 4096))
    content = files.result("push", 8, 2048)
    content["baton"]["void"] = "these cores were the limit"
    files.write(folder, content)
    moved = files.result("push", 1, 1024)
    moved["baton"]["bytes"]["moved"] -= 1
    files.write(folder, moved)
    done = plot(folder, "--out", tmp_path)
    assert f"{count} results, 2 of them void" in done.stdout
    svg = xml.etree.ElementTree.parse(tmp_path / "ttft_mean.svg").getroot()
    assert len([e for e in svg.iter() if e.get("class") == "result void"]) == 2
    assert len([e for e in svg.iter() if e.get("class") == "result"]) == count - 2
    lines = [e.get("d") for e in svg.iter() if e.get("class") == "line"]
    assert sorted(line.count("M") for line in lines) == [1, 1, 1, 2]  # broken at the middle one
    assert sorted(line.count("L") for line in lines) == [0, 1, 2, 2]
    assert any("these cores were the limit" in (t.text or "") for t in svg.iter(SVG + "text"))
    document, console = opened(tmp_path / "plot.html", tmp_path)
    assert console == []
    assert len(document.with_class("void")) == 2
    assert "these cores were the limit" in "".join("".join(parts) for parts in document.text.values())


def test_saturated_points_are_open_marks_in_no_ratio_and_the_legend_says_so(tmp_path):
    folder = tmp_path / "results"
    count = files.write_grid(folder, inputs=(1024, 16384))
    without = json.dumps(files.result("push", 8, 16384))
    plot(folder, "--out", tmp_path / "before")
    ratios = [t.text for t in texts_of(tmp_path / "before" / "ttft_mean.svg") if t.get("class") == "ratio"]
    assert len(ratios) == 2 and "saturated" not in [t.text for t in texts_of(tmp_path / "before" / "ttft_mean.svg")]
    content = json.loads(without)
    content["baton"]["saturated"] = True
    content["baton"]["arrivals"] = {"offered_per_s": 8, "answered_per_s": 5.25, "open_at_last_arrival": 29}
    files.write(folder, content)
    plot(folder, "--out", tmp_path)
    svg = xml.etree.ElementTree.parse(tmp_path / "ttft_mean.svg").getroot()
    marks = [e for e in svg.iter() if e.get("class") == "result saturated"]
    assert len(marks) == 1 and marks[0].get("fill") == "#ffffff" and marks[0].get("stroke") == "#0072b2"
    assert len([e for e in svg.iter() if e.get("class") == "result"]) == count - 1
    text = [t.text for t in svg.iter(SVG + "text")]
    assert "saturated" in text and any("in no ratio: 1 of 8 results" in (t or "") for t in text)
    # At 8 req/s the shorter input is the longest at which neither is saturated.
    now = [t.text for t in svg.iter(SVG + "text") if t.get("class") == "ratio"]
    assert len(now) == 2 and now[0] == ratios[0] and now[1] != ratios[1]
    document, console = opened(tmp_path / "plot.html", tmp_path)
    assert console == [] and len(document.with_class("saturated")) == 1
    index = int(document.with_class("saturated")[0]["data-result"])
    document, console = opened(tmp_path / "plot.html", tmp_path, f"#point={index}")
    assert "8 requests/s offered, 5.25 answered, 29 open" in "".join("".join(parts) for parts in document.text.values())


def test_a_result_without_a_value_is_drawn_too(tmp_path):
    content = files.result("push", 8, 1024)
    for key in [k for k in content if k.endswith("_ttft_ms")]:
        content[key] = None
    files.write_grid(tmp_path / "results")
    files.write(tmp_path / "results", content)
    document, console = opened(page_only(tmp_path / "results", tmp_path / "out"), tmp_path)
    assert console == []
    assert len(drawn(document)) == 8
    assert len(document.with_class("void")) == 1


def test_results_that_are_not_emulated_do_not_say_so_and_mixed_folders_say_which(tmp_path):
    for name, emulated in (("real", False), ("timed", True)):
        for mode in ("engine-loop-pull", "push"):
            content = files.result(mode)
            content["baton"].update({"seed": 9} if emulated else {"emulated": False, "profile": None, "scale": 1, "label": ""})
            files.write(tmp_path / name, content)
    plot(tmp_path / "real", "--out", tmp_path / "one")
    assert "emulated" not in (tmp_path / "one/ttft_mean.svg").read_text(encoding="utf-8")
    plot(tmp_path / "real", "--compare", tmp_path / "timed", "--out", tmp_path / "two")
    svg = (tmp_path / "two/ttft_mean.svg").read_text(encoding="utf-8")
    assert "real: as run · timed: emulated: qwen3-32b-tp8-h200, bytes / 64" in svg
    assert "push (timed)" in svg
    assert "seed 8 (real), 9 (timed)" in svg


def test_the_names_of_many_lines_have_room(tmp_path):
    modes = ("local", "engine-loop-pull", "published-push", "push")
    for name in ("before", "after"):
        files.write_grid(tmp_path / name, modes)
    plot(tmp_path / "before", "--compare", tmp_path / "after", "--out", tmp_path)
    svg = xml.etree.ElementTree.parse(tmp_path / "ttft_mean.svg").getroot()
    places = {t.text: (float(t.get("x")), float(t.get("y"))) for t in svg.findall(SVG + "text")}
    names = [places[f"{mode} ({folder})"] for folder in ("before", "after") for mode in modes]
    assert len({y for _, y in names}) == 2
    assert all(x < int(svg.get("width")) - 180 for x, _ in names)
    first_panel = next(g for g in svg.iter(SVG + "g") if g.get("class") == "panel").get("transform")
    assert max(y for _, y in names) < float(re.search(r" ([\d.]+)\)", first_panel)[1]) - 20
    width, height = struct.unpack(">II", (tmp_path / "ttft_mean.png").read_bytes()[16:24])
    assert (width, height) == (2 * int(svg.get("width")), 2 * int(svg.get("height")))


def test_files_of_vllm_itself_are_drawn(tmp_path):
    for mode in ("pull", "push"):
        content = files.result(mode)
        name = files.name_of(content)
        del content["baton"]
        files.write(tmp_path / "results", content, name)
    plot(tmp_path / "results", "--out", tmp_path)
    assert "emulated" not in (tmp_path / "ttft_mean.svg").read_text(encoding="utf-8")


# ---------------------------------------------------------------------------------------------------------------------
# Refusals. Each names what differs, and both values.

def refused(done, *words):
    assert done.returncode == 1, done.stdout + done.stderr
    for word in words:
        assert word in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("field, unlike, ours, theirs", [
    ("qps", {"rates": (1, 4)}, "1, 8", "1, 4"),
    ("input_len", {"inputs": (1024, 8192)}, "1024, 16384", "1024, 8192"),
    ("output_len", {"outputs": (64,)}, "128", "64"),
    ("iteration", {"iterations": (1, 2, 3)}, "1", "1, 2, 3"),
    ("mode", {"modes": ("push",)}, "engine-loop-pull, push", "push"),
])
def test_folders_of_unlike_grids_are_refused(tmp_path, field, unlike, ours, theirs):
    files.write_grid(tmp_path / "a")
    files.write_grid(tmp_path / "b", **unlike)
    done = plot(tmp_path / "a", "--compare", tmp_path / "b", "--out", tmp_path / "out", ok=False)
    refused(done, f"the grids differ in {field}", f"{tmp_path / 'a'} has {ours};", f"{tmp_path / 'b'} has {theirs}\n")
    assert not (tmp_path / "out").exists()


def test_modes_of_unlike_grids_are_refused_and_one_mode_is_not(tmp_path):
    files.write_grid(tmp_path / "a")
    files.write(tmp_path / "a", files.result("push", 16, 1024))
    refused(plot(tmp_path / "a", ok=False), "qps", "mode engine-loop-pull has 1, 8", "mode push has 1, 8, 16")
    page_only(tmp_path / "a", tmp_path / "out", "--modes", "push")
    refused(plot(tmp_path / "a", "--modes", "local", ok=False), "no results of mode local", "engine-loop-pull, push")


@pytest.mark.parametrize("content, words", [
    ("{", ["not JSON"]),
    ("[1]", ["not an object"]),
    ("{\"name\": \"package\"}", ["field completed is missing"]),
    ("\x00\x01", ["not JSON"]),
    ("[" * 200000, ["not JSON"]),
    ("", ["not JSON"]),
])
def test_foreign_files_are_refused_by_name(tmp_path, content, words):
    files.write_grid(tmp_path / "a")
    (tmp_path / "a/push_qps8_in1024_out128_iter1.json").write_text(content, encoding="utf-8")
    refused(plot(tmp_path / "a", ok=False), "push_qps8_in1024_out128_iter1.json", *words)


@pytest.mark.parametrize("flags, words", [
    (["--metric", "speed"], ["--metric", "speed"]),
    (["--stat", "p42"], ["--stat", "p42"]),
    (["--theme", "blue"], ["--theme", "blue"]),
    (["--y-axis", "cubic"], ["--y-axis", "cubic"]),
    (["--modes", "push,push"], ["--modes"]),
    (["--requests", "-3"], ["--requests"]),
])
def test_wrong_flags_are_refused(tmp_path, flags, words):
    files.write_grid(tmp_path / "a")
    done = plot(tmp_path / "a", *flags, ok=False)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words), done.stderr


def test_a_folder_that_is_none_or_empty_is_refused(tmp_path):
    refused(plot(tmp_path / "none", ok=False), str(tmp_path / "none"))
    refused(plot(tmp_path, ok=False), "no result file")


def test_a_metric_that_nothing_has_is_refused(tmp_path):
    content = files.result("local")
    files.write(tmp_path / "a", content)
    refused(plot(tmp_path / "a", "--metric", "handover", ok=False), "handover", "baton.handover_ms.total")


def test_without_chromium_the_page_is_written_and_the_figures_are_refused(tmp_path):
    files.write_grid(tmp_path / "a")
    for flags, env in ((["--chromium", "/nowhere/c"], {}), ([], {"PATH": "/nowhere", "BATON_CHROMIUM": ""})):
        done = plot(tmp_path / "a", "--out", tmp_path / "out", *flags, ok=False, env=env)
        refused(done, "the page is written, its SVG and PNG figures are not")
        assert [p.name for p in (tmp_path / "out").iterdir()] == ["plot.html"]
        shutil.rmtree(tmp_path / "out")


def test_without_uplot_nothing_is_written(tmp_path):
    files.write_grid(tmp_path / "a")
    done = plot(tmp_path / "a", "--out", tmp_path / "out", ok=False, env={"BATON_UPLOT": "/nowhere"})
    refused(done, "/nowhere/uPlot.iife.min.js", "tools/setup")
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------------------------------------------------------------

def hostile_results(tmp_path):
    """All text that a result file can carry, and the folder's own name."""
    folder = tmp_path / HOSTILE.replace("/", "_")
    for mode in ("engine-loop-pull", f"push{HOSTILE}".replace("/", "_")):
        content = files.result("push")
        baton = content["baton"]
        content["date"] = HOSTILE
        baton.update({"mode": mode, "profile": HOSTILE, "label": HOSTILE, "void": HOSTILE, "failures": {HOSTILE: 1},
                      "environment": {HOSTILE: HOSTILE, "flags": {HOSTILE: [HOSTILE]}}, "first_token": HOSTILE, "prefill": HOSTILE})
        baton["goodput"]["slo"] = {HOSTILE: HOSTILE}
        for request in baton["requests"]:
            request.update({"id": HOSTILE, "error": HOSTILE})
            for span in request["spans"]:
                span["name"] = HOSTILE
        files.write(folder, content)
    return folder


def test_text_of_strangers_is_shown_and_never_markup(tmp_path):
    folder = hostile_results(tmp_path)
    plot(folder, "--out", tmp_path / "out")
    plain, _ = opened(page_only(write_plain(tmp_path), tmp_path / "plain"), tmp_path, "#point=1")
    document, console = opened(tmp_path / "out/plot.html", tmp_path, "#point=1")
    assert console == []
    assert "data-hacked" not in document.body() and "data-fault" not in document.body()
    kinds = {tag for tag, _ in document.all}
    assert kinds <= {tag for tag, _ in plain.all} | {"p", "small", "g"} and "img" not in kinds
    assert [tag for tag, _ in document.all].count("script") == [tag for tag, _ in plain.all].count("script")
    assert HOSTILE in "".join("".join(parts) for parts in document.text.values())
    svg = xml.etree.ElementTree.parse(tmp_path / "out/ttft_mean.svg").getroot()
    assert {e.tag for e in svg.iter()} <= {SVG + t for t in ("svg", "title", "rect", "text", "path", "g", "circle")}
    assert len([e for e in svg.iter() if e.get("class") == "result void"]) == 2


def write_plain(tmp_path):
    for mode in ("engine-loop-pull", "push"):
        content = files.result(mode)
        content["baton"]["void"] = "plain"
        files.write(tmp_path / "plain-results", content)
    return tmp_path / "plain-results"


def test_names_of_files_do_not_steer_the_terminal(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a/\x1b[31mpush_qps8_in1024_out128_iter1.json").write_text("{}", encoding="utf-8")
    done = plot(tmp_path / "a", ok=False)
    refused(done, "\\x1b[31mpush", "field completed is missing")
    assert "\x1b" not in done.stderr


def test_a_page_carries_no_more_requests_than_asked(tmp_path):
    files.write(tmp_path / "a", files.result(requests=50))
    page = page_only(tmp_path / "a", tmp_path / "out", "--requests", "7")
    document, _ = opened(page, tmp_path, "#point=0")
    assert "7 of 50" in "".join("".join(parts) for parts in document.text.values())


def test_many_results_make_a_figure_of_several_rows(tmp_path):
    files.write_grid(tmp_path / "a", rates=(1, 2, 4, 8, 16), inputs=(1024,), outputs=(64, 128))
    plot(tmp_path / "a", "--out", tmp_path / "out", "--y-axis", "log", "--theme", "dark")
    svg = xml.etree.ElementTree.parse(tmp_path / "out/ttft_mean.svg").getroot()
    panels = [g for g in svg.iter(SVG + "g") if g.get("class") == "panel"]
    assert len(panels) == 10
    places = {g.get("transform") for g in panels}
    assert len(places) == 10
    bottom = max(float(re.search(r" ([\d.]+)\)", p)[1]) for p in places)
    assert bottom + 250 < int(svg.get("height"))
    assert pathlib.Path(tmp_path / "out/ttft_mean.png").stat().st_size > 10000


def timeline(*words):
    return subprocess.run(["tools/draw_timeline", *map(str, words)], capture_output=True, text=True, timeout=60,
                          cwd=pathlib.Path(__file__).parents[2])


def bars_of(svg):
    return [float(r.get("width")) for r in xml.etree.ElementTree.parse(svg).getroot().iter(SVG + "rect") if r.get("rx")]


def test_a_time_line_has_a_bar_for_every_span_on_one_scale(tmp_path):
    slow, fast = (files.write(tmp_path, files.result(mode)) for mode in ("engine-loop-pull", "push"))
    done = timeline(tmp_path / "out.svg", slow, fast, "--request", 2)
    assert done.returncode == 0, done.stderr
    spans = [s for path in (slow, fast) for s in json.loads(path.read_text())["baton"]["requests"][2]["spans"] if s["side"] != "router"]
    assert len(bars_of(tmp_path / "out.svg")) == len(spans)
    texts = [t.text for t in xml.etree.ElementTree.parse(tmp_path / "out.svg").getroot().iter(SVG + "text")]
    assert sum("emulated: qwen3-32b-tp8-h200" in t for t in texts) == 2
    timeline(tmp_path / "alone.svg", fast, "--request", 2)
    assert bars_of(tmp_path / "alone.svg")[1] > 2 * bars_of(tmp_path / "out.svg")[len(spans) // 2 + 1]  # P's computing


def test_a_time_line_of_what_is_not_there_is_refused(tmp_path):
    path = files.write(tmp_path, files.result("push"))
    for words in ([path, "--request", 99], [tmp_path / "none.json"], [files.write(tmp_path, {"baton": {}}, "empty.json")]):
        done = timeline(tmp_path / "out.svg", *words)
        assert done.returncode == 2 and str(words[0]) in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "out.svg").exists()


def test_a_time_line_says_which_requests_there_are_and_which_was_not_answered(tmp_path):
    result = files.result("push", requests=4)
    result["baton"]["requests"][1].update(ttft_ms=None, error="500: peer_died")
    path = files.write(tmp_path, result)
    for number, words in ((-1, ["--request -1", "0 to 3"]), (4, ["--request 4", "0 to 3"]), (1, ["request 1", "peer_died"])):
        done = timeline(tmp_path / "out.svg", path, f"--request={number}")
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        for word in (str(path), *words):
            assert word in done.stderr, done.stderr
    assert not (tmp_path / "out.svg").exists()


# ---------------------------------------------------------------------------------------------------------------------
# The same results as a table.

def sweep_table(*words, ok=True):
    done = subprocess.run(["tools/sweep_table", *map(str, words)], capture_output=True, text=True, timeout=60,
                          cwd=pathlib.Path(__file__).parents[2])
    assert "Traceback" not in done.stderr and (done.returncode == 0) == ok, done.stdout + done.stderr
    return done


def paired(mode, ttfts, iteration=1, seed=11):
    """A result with these requests' TTFT, all sent as every other mode's."""
    content = files.result(mode, 8, 1024, iteration=iteration, requests=len(ttfts))
    content["baton"]["seed"] = seed
    content["mean_ttft_ms"], content["median_ttft_ms"], content["median_tpot_ms"] = sum(ttfts) / len(ttfts), sorted(ttfts)[len(ttfts) // 2], 6.25
    for i, (request, ttft) in enumerate(zip(content["baton"]["requests"], ttfts)):
        request.update(ttft_ms=ttft, due_ms=125.0 * i)
    return content


def rows_of(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]


def test_the_table_names_what_is_emulated_and_has_mean_and_median(tmp_path):
    slow, fast = paired("threaded-pull", [30, 60, 210]), paired("push", [20, 40, 180])
    slow["baton"]["void"] = "late"
    fast["baton"]["saturated"] = True
    for content in (slow, fast):
        files.write(tmp_path, content)
    text = sweep_table(tmp_path).stdout
    assert text.startswith("*emulated: qwen3-32b-tp8-h200, bytes / 64*. 1 iteration a point; \\* void")
    assert ["1,024", "push", "80.0 (40.0) / 6.2^"] in rows_of(text) and ["1,024", "threaded-pull", "100.0 (60.0) / 6.2*"] in rows_of(text)


def test_the_difference_of_two_modes_is_of_matched_requests(tmp_path):
    """Arrivals make the TTFT of both 20 to 180 ms; they are in neither the difference nor its error."""
    slow, fast = paired("threaded-pull", [30, 60, 210]), paired("push", [20, 40, 180])
    for content in (slow, fast):
        files.write(tmp_path, content)
    assert rows_of(sweep_table(tmp_path).stdout)[-1] == ["1,024", "threaded-pull", "+20.0 ± 5.8, n=3"]
    assert rows_of(sweep_table(tmp_path, "--against", "threaded-pull").stdout)[-1] == ["1,024", "push", "-20.0 ± 5.8, n=3"]
    slow["baton"]["requests"][2].update(error="http_500: gone", ttft_ms=None)
    files.write(tmp_path, slow)
    assert rows_of(sweep_table(tmp_path).stdout)[-1] == ["1,024", "threaded-pull", "+15.0 ± 5.0, n=2"]
    # Several iterations: their differences are what varies.
    for content in (paired("threaded-pull", [40, 50], 2, 12), paired("push", [20, 20], 2, 12)):
        files.write(tmp_path, content)
    assert rows_of(sweep_table(tmp_path).stdout)[-1] == ["1,024", "threaded-pull", "+20.0 ± 5.0, iterations=2"]


def test_a_void_iteration_is_in_no_mean_and_in_no_difference(tmp_path):
    slow = [paired("threaded-pull", ttfts, i, 10 + i) for i, ttfts in enumerate([[30, 60], [40, 50], [900, 900]], 1)]
    fast = [paired("push", [20, 40], i, 10 + i) for i in (1, 2, 3)]
    slow[2]["baton"]["void"] = "late"
    for content in slow + fast:
        files.write(tmp_path, content)
    text = sweep_table(tmp_path).stdout
    assert "void, and counts for nothing (left out of several iterations)" in text
    assert ["1,024", "threaded-pull", "45.0 (55.0) / 6.2"] in rows_of(text)
    assert rows_of(text)[-1] == ["1,024", "threaded-pull", "+15.0 ± 0.0, iterations=2"]


def test_the_page_has_every_table_names_what_is_not_there_and_counts_what_the_text_says(tmp_path):
    for content in (paired("threaded-pull", [30, 60, 75]), paired("push", [20, 40, 60]), paired("engine-loop-pull", [200, 300, 400]),
                    paired("engine-loop-pull-merged", [15, 35, 54])):
        files.write(tmp_path / "grid", content)
    for content in (paired("threaded-pull", [31, 61, 76]), paired("push", [20, 40, 60])):
        files.write(tmp_path / "neither", content)
    done = sweep_table(tmp_path, "--page", ok=False)
    assert done.returncode == 1 and "runs-of-eight" in done.stderr and "real" in done.stderr and "neither" not in done.stderr
    rows = rows_of(done.stdout)
    assert ["as in the grid: threaded pull", "55 / 6.2"] in rows and ["neither: threaded pull", "56 / 6.2"] in rows
    assert ["1,024", "engine-loop-pull", "300.0 (300.0) / 6.2"] in rows, "in the grid's table"
    assert not any(row[1] == "engine-loop-pull" and "±" in row[-1] for row in rows), "and compared only where it merges"
    assert ("- 8 req/s, beyond twice the standard error: push is ahead in 1, behind in 1 (engine-loop-pull-merged x 1,024), neither in 0;"
            " void, saturated or unknown: 0") in done.stdout


def test_requests_that_were_not_sent_alike_are_not_compared(tmp_path):
    unlike = paired("threaded-pull", [30, 60, 210])
    unlike["baton"]["requests"][1]["due_ms"] += 1
    for content in (unlike, paired("push", [20, 40, 180]), paired("local", [20, 40, 180], seed=12)):
        files.write(tmp_path, content)
    assert [row[-1] for row in rows_of(sweep_table(tmp_path).stdout)[-2:]] == ["unlike requests", "unlike requests"]


def test_the_split_accounts_for_the_time_to_first_token(tmp_path):
    content = files.result("push", 8, 1024)
    content["baton"]["handover_ms"]["first_token"]["mean"] -= 2.5
    files.write(tmp_path, content)
    head, row = rows_of(sweep_table(tmp_path, "--split", 8, 1024).stdout)
    assert row[head.index("in no part")] == "2.5" and "front_end" in head and "-" not in row
    files.write(tmp_path, files.result("local", 8, 1024))
    assert rows_of(sweep_table(tmp_path, "--split", 8, 1024).stdout)[1][2] == "-"


@pytest.mark.parametrize("words, said", [
    (["--against", "pull"], ["--against pull", "push"]),
    (["--split", "3", "1024"], ["--split 3 1024"]),
])
def test_a_table_of_what_is_not_there_is_refused(tmp_path, words, said):
    files.write(tmp_path, files.result("push", 8, 1024))
    done = sweep_table(tmp_path, *words, ok=False)
    assert all(word in done.stderr for word in said), done.stderr
    (tmp_path / "x_iter1.json").write_text("{}", encoding="utf-8")
    assert "x_iter1.json" in sweep_table(tmp_path, ok=False).stderr
