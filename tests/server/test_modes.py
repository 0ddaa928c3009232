"""Verify modes and run-time control through the real server: one server, switched between steps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.server.ask import counting, many, tokens_of
from tests.server.conftest import Serve
from tests.server.servers import Running

PROMPTS = [[100 + (3 * i + k) % 6 for k in range(9 + i)] for i in range(8)]
RIDS = [f"request-{i}" for i in range(8)]
LENGTH = 40
START: dict[str, Any] = {
    "dspark_verify_mode": "compact",
    "dspark_gamma_limit": 7,
    "dspark_budget": None,
    "dspark_no_draft": "off",
}
PLANNED = {"search", "least-gain", "look", "no-draft", "probe"}  # reasons that a price gave


# Every mode with every limit, and windows that are empty, mixed and whole.
CHOICES = [
    ("compact", 1, 0.5),
    ("compact", 3, 0.4),
    ("compact", 7, 0.0),
    ("compact", 7, 0.4),
    ("compact", 7, 1.0),
    ("cap-accept", 1, 1.0),
    ("cap-accept", 3, 0.4),
    ("cap-accept", 7, 0.4),
]


def steer(server: Running, **settings: Any) -> httpx.Response:
    return httpx.post(f"{server.url}/set_internal_state", json={"server_args": settings})


@contextmanager
def steered(server: Running, **settings: Any) -> Iterator[None]:
    """The server with these settings, and as it started afterwards."""
    reply = steer(server, **settings)
    assert reply.status_code == 200, reply.text
    try:
        yield
    finally:
        assert steer(server, **START).status_code == 200


def answers(server: Running, **sampling: Any) -> list[tuple[int, ...]]:
    settings = {"temperature": 0, "max_new_tokens": LENGTH, "ignore_eos": True, **sampling}
    # Fresh rids would be fresh noise at temperature 1.
    return tokens_of(many(server.client, PROMPTS, rids=RIDS, **settings))


def alone(server: Running, **sampling: Any) -> list[tuple[int, ...]]:
    settings = {"temperature": 0, "max_new_tokens": LENGTH, "ignore_eos": True, **sampling}
    return [tokens_of(many(server.client, [p], **settings))[0] for p in PROMPTS[:3]]


@pytest.mark.serves("modes", "modes-sync")
@pytest.mark.parametrize("name", ["modes", "modes-sync"])
@pytest.mark.parametrize("kind", ["greedy", "seeded"])
def test_no_mode_limit_or_budget_changes_a_deterministic_token(serve: Serve, name, kind):
    server = serve(name)
    sampling = {} if kind == "greedy" else {"temperature": 1.0, "sampling_seed": 11}
    with steered(server, dspark_verify_mode="static"):
        expected = answers(server, **sampling)
    for mode, gamma, fraction in CHOICES:
        choice = {"dspark_verify_mode": mode, "dspark_gamma_limit": gamma}
        with steered(server, **choice, dspark_budget_fraction=fraction):
            assert answers(server, **sampling) == expected, (mode, gamma, fraction)


@pytest.mark.serves("modes")
def test_compact_and_cap_accept_commit_the_same_tokens_at_temperature_1(serve: Serve):
    server = serve("modes")
    committed = {}
    for mode in ("compact", "cap-accept"):
        with steered(server, dspark_verify_mode=mode, dspark_budget_fraction=0.4):
            committed[mode] = answers(server, temperature=1.0)
    assert committed["compact"] == committed["cap-accept"]


@pytest.mark.serves("modes")
@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 1.0])
def test_a_pinned_budget_is_the_number_of_rows_the_target_runs(serve: Serve, fraction):
    """Fault C2: profilers once pinned budgets that were never executed."""
    server = serve("modes")
    with steered(server, dspark_budget_fraction=fraction), counting(server) as seen:
        alone(server)
    pairs = seen.verified_requests
    assert seen.verified_drafts == pairs * int(fraction * 7)
    assert seen.planned_rows == pairs + seen.verified_drafts
    assert seen.after["step_reasons"]["pinned"] > 0


@pytest.mark.serves("modes")
def test_cap_accept_shows_the_ceiling_that_compact_hides(serve: Serve):
    server = serve("modes")
    with steered(server, dspark_verify_mode="cap-accept", dspark_budget=1):
        httpx.post(
            f"{server.url}/set_internal_state",
            json={"server_args": {"dspark_clear_info_records": 1}},
        )
        answers(server, temperature=1.0)
        record = server.client.worker_record()
    assert record["accept_length"] < record["ceiling_accept_length"]


@pytest.mark.serves("modes")
def test_without_a_table_compact_verifies_all_and_says_so(serve: Serve):
    server = serve("modes")
    with counting(server) as seen:
        alone(server)
    record = server.client.worker_record()
    assert record["cost_table"] == "verify-all"
    assert seen.verified_drafts == seen.drafted


@pytest.mark.serves("modes-sync")
def test_algorithm_1_uses_the_block_at_hand_and_changes_no_token(serve: Serve):
    server = serve("modes-sync")
    with steered(server, dspark_verify_mode="static"):
        expected = answers(server)
    with counting(server) as seen:
        assert answers(server) == expected
    assert seen.after["step_reasons"]["algorithm-1"] > 0
    assert 0 < seen.verified_drafts < seen.drafted
    assert seen.planned_rows == seen.verified_requests + seen.verified_drafts


@pytest.mark.serves("modes")
@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"dspark_verify_mode": "banana"}, "static, cap-accept, compact"),
        ({"dspark_gamma_limit": 8}, "1 to 7"),
        ({"dspark_budget_fraction": 2}, "0 to 1"),
        ({"dspark_no_draft": "auto"}, "cost table"),
        ({"dspark_trace": "steps"}, "directory"),
        ({"dspark_typo": "x"}, "not a DSPARK setting"),
        ({"dspark_gamma_limit": 3, "max_prefill_tokens": 5}, "apart from"),
        ({"pp_max_micro_batch_size": "text"}, "numbers only"),
    ],
)
def test_a_refused_setting_is_a_400_with_the_reason_and_changes_nothing(
    serve: Serve, settings, reason
):
    server = serve("modes")
    keys = ("mode", "gamma_limit", "no_draft", "pinned_drafts", "pinned_fraction", "trace")
    before = [server.client.worker_record()[key] for key in keys]
    reply = steer(server, **settings)
    assert reply.status_code == 400 and reason in reply.text
    assert [server.client.worker_record()[key] for key in keys] == before


@pytest.mark.serves("modes")
def test_drafting_can_be_switched_off_and_on_in_the_middle_of_requests(serve: Serve):
    server = serve("modes")
    expected = answers(server)
    with steered(server, dspark_no_draft="on"), counting(server) as seen:
        assert answers(server) == expected
    assert seen.drafted == 0 and seen.no_draft_steps == seen.steps
    with steered(server, dspark_no_draft="alternate"):
        assert answers(server) == expected


@pytest.mark.serves("modes")
def test_the_metrics_page_follows_the_worker(serve: Serve):
    server = serve("modes")
    answers(server)
    page = httpx.get(f"{server.url}/metrics").text
    for name in ("steps_total", "verified_drafts_total", "accept_length", "calibration_error"):
        assert f"sglang:dspark_{name}" in page


@pytest.mark.serves("scheduled")
def test_a_table_measured_at_start_decides_every_step_and_changes_no_token(serve: Serve):
    """What it decides is the machine's affair: whole blocks may be the best everywhere."""
    server = serve("scheduled")
    record = server.client.worker_record()
    assert record["cost_table"].endswith(".json") and record["no_draft"] == "auto"
    with steered(server, dspark_verify_mode="static"):
        expected = answers(server)
    steer(server, dspark_no_draft="auto")
    with counting(server) as seen:
        assert answers(server) == expected
    assert set(seen.reasons) <= PLANNED and seen.reasons
    record = server.client.worker_record()
    assert record["predicted_step_ms"] > 0 and record["actual_step_ms"] > 0
    steer(server, dspark_verify_mode="compact")


@pytest.mark.serves("scheduled")
def test_a_table_chosen_while_serving_decides_windows_and_changes_no_token(serve: Serve):
    server = serve("scheduled")
    with steered(server, dspark_verify_mode="static"):
        expected = answers(server)
    drafts_per_request = {}
    for name in ("dear", "linear"):
        with steered(server, dspark_cost_table=name), counting(server) as seen:
            assert answers(server) == expected
        assert seen.after["cost_table"] == f"{name}.json"
        drafts_per_request[name] = seen.verified_drafts / seen.verified_requests
    steer(server, dspark_cost_table=None)
    assert drafts_per_request["dear"] < drafts_per_request["linear"] < 7
    steer(server, dspark_verify_mode="compact")
