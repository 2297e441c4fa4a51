import io
import json
import logging
from datetime import datetime

import pytest

from wegl_dask.logs import LoggedProgress, json_lines, log, log_event, set_levels


def lines(stream):
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_events_and_messages_are_one_json_object_a_line():
    stream = io.StringIO()
    with json_lines(stream):
        log_event("part", "embed: shard 3", stage="embed", shards=(3,), worker="tcp://a:1", seconds=0.5)
        logging.getLogger("elsewhere").warning("%d\nlines of “text”", 2)
    part, message = lines(stream)
    assert datetime.fromisoformat(part.pop("time")).utcoffset().total_seconds() == 0
    assert part == {
        "level": "info",
        "event": "part",
        "message": "embed: shard 3",
        "stage": "embed",
        "shards": [3],
        "worker": "tcp://a:1",
        "seconds": 0.5,
    }
    assert (message["level"], message["event"], message["message"]) == ("warning", "message", "2\nlines of “text”")


def test_a_traceback_is_part_of_its_object():
    stream = io.StringIO()
    with json_lines(stream):
        try:
            1 / 0  # noqa: B018
        except ZeroDivisionError:
            logging.getLogger("elsewhere").exception("it failed")
    (entry,) = lines(stream)
    assert "ZeroDivisionError: division by zero" in entry["traceback"]


def test_what_loggers_with_handlers_of_their_own_say_is_json_too(capsys):
    from distributed import nanny

    # Dask's loggers have one handler, on the standard error that there was when it was imported.
    handler, logger = logging.StreamHandler(), logging.getLogger("distributed")
    before = (logger.handlers[:], logger.propagate)
    logger.handlers[:], logger.propagate = [handler], False
    stream = io.StringIO()
    try:
        with json_lines(stream):
            logging.getLogger(f"{nanny.__name__}.memory").warning("a worker is restarted")
        assert (logger.handlers, logger.propagate) == ([handler], False)
    finally:
        logger.handlers[:], logger.propagate = before
    assert [(line["level"], line["message"]) for line in lines(stream)] == [("warning", "a worker is restarted")]
    assert capsys.readouterr().err == ""


def test_afterwards_logging_is_as_it_was(caplog):
    root = logging.getLogger()
    before = (root.handlers[:], root.level, log.level)
    with pytest.raises(ZeroDivisionError), json_lines(io.StringIO()):
        1 / 0  # noqa: B018
    assert (root.handlers, root.level, log.level) == before
    caplog.set_level(logging.DEBUG)
    log_event("part", "nobody asked for it")
    assert caplog.messages == []


@pytest.fixture
def levels_put_back():
    """Let each logger that is there have its level back in the end."""
    loggers = [logging.getLogger(name) for name in (None, "wegl_dask", *logging.root.manager.loggerDict)]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.mark.usefixtures("levels_put_back")
@pytest.mark.parametrize(
    ("debug", "expected"), [(False, ["theirs, a warning", "ours"]), (True, ["theirs", "theirs, a warning", "ours"])]
)
def test_of_libraries_only_what_is_worth_a_warning_is_logged_unless_it_is_for_debugging(debug, expected):
    set_levels(debug=debug)
    stream = io.StringIO()
    with json_lines(stream):
        logging.getLogger("botocore.credentials").info("theirs")
        logging.getLogger("botocore.credentials").warning("theirs, a warning")
        logging.getLogger("wegl_dask.slurm_client").info("ours")
    assert [line["message"] for line in lines(stream)] == expected


@pytest.mark.parametrize(("error", "event"), [(None, "stage_finished"), (KeyError, "stage_stopped")])
def test_a_stage_is_an_event_when_it_begins_and_when_it_ends(error, event):
    stream = io.StringIO()
    with json_lines(stream):
        try:
            with LoggedProgress("embed", 3) as progress:
                progress.update(2, 70)
                progress.update(rows=5)
                if error:
                    raise error
        except KeyError:
            pass
    started, ended = lines(stream)
    assert (started["event"], started["stage"], started["parts"]) == ("stage_started", "embed", 3)
    assert (ended["event"], ended["stage"], ended["parts"], ended["graphs"]) == (event, "embed", 3, 75)
    assert ended["seconds"] >= 0
