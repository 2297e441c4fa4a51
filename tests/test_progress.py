import io
import os
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wegl_dask.progress import Progress, format_bytes, format_seconds


class Clock:
    """A clock that the test moves."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def log():
    return io.StringIO()


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return Terminal()


def on_screen(text):
    """What a terminal shows in the end: a carriage return with an erase starts the line anew."""
    return [re.split("\r\x1b\\[K", line)[-1] for line in text.split("\n")]


def test_a_log_gets_a_line_every_ten_seconds_and_one_at_the_end(clock, log):
    with Progress("embed", 40, stream=log, clock=clock) as progress:
        for _ in range(40):
            clock.now += 1
            progress.update(rows=50)
    assert log.getvalue().splitlines() == [
        "embed: 10 of 40 parts, 500 graphs, 50 graphs/s, 30 s left",
        "embed: 20 of 40 parts, 1,000 graphs, 50 graphs/s, 20 s left",
        "embed: 30 of 40 parts, 1,500 graphs, 50 graphs/s, 10 s left",
        "embed: 40 of 40 parts, 2,000 graphs, 50 graphs/s, 40 s",
    ]


def test_a_short_stage_is_one_line_in_a_log(clock, log):
    with Progress("moments", 3, stream=log, clock=clock) as progress:
        for _ in range(3):
            clock.now += 0.5
            progress.update()
    assert log.getvalue() == "moments: 3 of 3 parts, 1.5 s\n"


def test_a_stage_without_parts_ends_with_its_line(clock, log):
    with Progress("embed", 0, stream=log, clock=clock):
        pass
    assert log.getvalue() == "embed: 0 of 0 parts, 0.0 s\n"


def test_parts_of_an_earlier_run_count_as_done_and_not_for_the_speed(clock, log):
    with Progress("embed", 10, done=6, stream=log, clock=clock) as progress:
        clock.now += 20
        progress.update(parts=2, rows=100)
    # Two parts took 20 s and two are missing.
    assert log.getvalue().splitlines() == [
        "embed: 8 of 10 parts, 100 graphs, 5 graphs/s, 20 s left",
        "embed: 8 of 10 parts, 100 graphs, 5 graphs/s, 20 s",
    ]


def test_the_time_left_is_about_right_from_the_first_of_many_workers_on(clock, log):
    # 100 workers make 1,000 parts of 60 to 69 s each.
    ends = sorted(sum(60 + (worker + part) % 10 for part in range(n)) for worker in range(100) for n in range(1, 11))
    start, foretold = clock.now, []
    with Progress("embed", len(ends), stream=log, clock=clock) as progress:
        for end in ends[:900]:
            clock.now = start + end
            before = len(log.getvalue())
            progress.update(under_way=100)
            if found := re.search(r"(\d+ h )?(\d+ min )?(?:([\d.]+) s )?left", log.getvalue()[before:]):
                hours, minutes, seconds = (float((text or "0").split()[0]) for text in found.groups())
                foretold.append((3600 * hours + 60 * minutes + seconds) / (ends[-1] - end))
    assert len(foretold) > 10
    # Without what is under way, the first would be a hundredfold.
    assert max(foretold) < 2.5
    assert min(foretold) > 0.5


def test_the_time_that_workers_take_to_start_is_not_taken_for_that_of_a_part(clock, log):
    with Progress("fit", 100, unit="fits", announced=True, stream=log, clock=clock) as progress:
        assert log.getvalue() == "fit: 0 of 100 fits\n"
        clock.now += 9
        for _ in range(50):
            progress.update(2, under_way=2)
            clock.now += 1
    lines = log.getvalue().splitlines()
    # Two are finished at the ninth second, and two in every further one.
    assert lines[1:3] == ["fit: 4 of 100 fits, 48 s left", "fit: 24 of 100 fits, 38 s left"]


@pytest.mark.parametrize("stream", ["log", "terminal"])
def test_a_brief_stage_is_shown_only_if_it_takes_ten_seconds(clock, request, stream):
    stream = request.getfixturevalue(stream)
    with Progress("embed", 9, brief=True, stream=stream, clock=clock) as progress:
        for _ in range(9):
            clock.now += 1
            progress.update()
    assert stream.getvalue() == ""
    with Progress("embed", 12, brief=True, stream=stream, clock=clock) as progress:
        for part in range(12):
            clock.now += 1
            progress.update()
            assert ("of 12 parts" in stream.getvalue()) == (part >= 9)
    assert on_screen(stream.getvalue())[-2:] == ["embed: 12 of 12 parts, 12 s", ""]


def test_a_stage_that_fails_says_how_far_it_came(clock, log):
    progress = Progress("embed", 10, stream=log, clock=clock)

    def fail_half_way():
        with progress:
            clock.now += 2
            progress.update(parts=4, rows=10)
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert log.getvalue() == "embed: 4 of 10 parts, 10 graphs, 5 graphs/s, 2.0 s\n"


@given(
    steps=st.lists(st.tuples(st.floats(0, 1e6), st.integers(0, 5), st.integers(0, 10**9)), max_size=30),
    done=st.integers(0, 5),
)
def test_nothing_but_printable_lines_goes_to_a_log(steps, done):
    clock, log = Clock(), io.StringIO()
    total = done + sum(parts for _, parts, _ in steps)
    with Progress("embed", total, done=done, stream=log, clock=clock) as progress:
        for seconds, parts, rows in steps:
            clock.now += seconds
            progress.update(parts, rows)
    assert all(line.isprintable() for line in log.getvalue().split("\n"))
    assert log.getvalue().endswith("\n")
    assert f"embed: {total} of {total} parts" in log.getvalue().splitlines()[-1]


def test_a_terminal_shows_one_line_drawn_over(clock, terminal):
    progress = Progress("embed", 4, stream=terminal, clock=clock)
    with progress:
        assert on_screen(terminal.getvalue()) == [f"embed [{'-' * 24}] 0 of 4 parts"]
        clock.now += 2
        progress.update(rows=600)
        # One part took 2 s, three are missing; the bar gives way to the text on 80 columns.
        [shown] = on_screen(terminal.getvalue())
        assert shown == f"embed [{'#' * 5}{'-' * 15}] 1 of 4 parts, 600 graphs, 300 graphs/s, 6.0 s left"
    assert on_screen(terminal.getvalue()) == ["embed: 1 of 4 parts, 600 graphs, 300 graphs/s, 2.0 s", ""]


@pytest.mark.parametrize("columns", [10, 20, 40, 79, 200])
def test_a_line_stays_within_the_terminal(clock, terminal, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    with Progress("embed", 4, stream=terminal, clock=clock) as progress:
        clock.now += 1
        progress.update(rows=1)
        assert all(len(line) < columns for line in re.split("\r\x1b\\[K", terminal.getvalue()))


def test_the_bar_is_not_drawn_more_than_ten_times_a_second(clock, terminal):
    with Progress("embed", 1000, stream=terminal, clock=clock) as progress:
        for _ in range(1000):
            clock.now += 0.001
            progress.update()
    assert terminal.getvalue().count("\r") <= 12


def test_a_terminal_that_cannot_move_its_cursor_is_written_to_like_a_log(clock, terminal, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with Progress("embed", 2, stream=terminal, clock=clock) as progress:
        progress.update(2)
    assert terminal.getvalue() == "embed: 2 of 2 parts, 0.0 s\n"


def test_progress_goes_to_standard_error(capsys):
    with Progress("embed", 1) as progress:
        progress.update(rows=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("embed: 1 of 1 parts, 1 graph, ")


def test_a_real_terminal_gets_a_bar(clock):
    controller, terminal = os.openpty()
    try:
        with (
            open(terminal, "w", encoding="utf-8", closefd=False) as stream,
            pytest.MonkeyPatch.context() as environment,
        ):
            environment.setenv("TERM", "xterm")
            environment.setenv("COLUMNS", "120")
            with Progress("ingest", 2, stream=stream, clock=clock) as progress:
                clock.now += 1
                progress.update(rows=5)
        shown = ""
        while not shown.endswith("\n"):
            shown += os.read(controller, 4096).decode()
    finally:
        os.close(controller)
        os.close(terminal)
    assert f"ingest [{'#' * 12}{'-' * 12}] 1 of 2 parts" in shown
    assert shown.endswith("\r\n")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (5 * 3600 + 29 * 60, "5 h 29 min"),
        (86399, "1 d 0 h"),
        (100 * 86400, "100 d 0 h"),
    ],
)
def test_seconds_are_rendered_in_two_units(seconds, text):
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1 kB"),
        (10_240, "10.2 kB"),
        (999_499, "999 kB"),
        (999_600, "1 MB"),
        (25_400_000_000, "25.4 GB"),
        (3 * 10**15, "3 PB"),
    ],
)
def test_bytes_are_rendered_to_three_figures(n_bytes, text):
    assert format_bytes(n_bytes) == text


def test_a_stage_whose_first_part_takes_long_says_for_how_long_less_and_less_often(clock, log, monkeypatch, wait_until):
    monkeypatch.setattr("wegl_dask.progress.LOG_SECONDS", 0.01)
    with Progress("reference", 1, stream=log, clock=clock) as progress:
        clock.now += 12
        wait_until(log.getvalue, "a line")
        assert log.getvalue() == "reference: 0 of 1 parts, 12 s so far\n"
        clock.now += 3600
        wait_until(lambda: log.getvalue().count("\n") == 2, "the next")
        progress.update()
    ended = log.getvalue()
    assert ended.splitlines()[1:] == ["reference: 0 of 1 parts, 1 h 0 min so far", "reference: 1 of 1 parts, 1 h 0 min"]
    clock.now += 3600
    alive = [thread for thread in threading.enumerate() if thread.name == "wegl-dask progress"]
    for thread in alive:
        thread.join(60)
    assert log.getvalue() == ended


def test_a_terminal_shows_that_time_goes_by(clock, terminal, monkeypatch, wait_until):
    monkeypatch.setattr("wegl_dask.progress.TICK_SECONDS", 0.01)
    with Progress("reference", 1, stream=terminal, clock=clock):
        clock.now += 3
        wait_until(lambda: on_screen(terminal.getvalue())[-1].endswith("0 of 1 parts, 3.0 s so far"), "the time")
