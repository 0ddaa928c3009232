"""Temperature 1: samples of the server follow the target's law, and the test can tell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from sglang_dspark.core.noise import coupled_exponentials
from sglang_dspark.profiling.client import Completion
from tests.draft.reference import ReferenceDraft, load_target
from tests.planted import LETTERS
from tests.server.ask import many, tokens_of
from tests.server.conftest import Serve
from tests.server.law import (
    Rule,
    Sampling,
    argmax_draft_judged_as_sampled,
    draft_alone,
    draw,
    law_of_words,
    next_logits,
    p_value,
    second_token_under,
    without_first,
)
from tests.server.servers import Pairs, Running

pytestmark = pytest.mark.serves("law")

GAMMA = 2  # a whole window and its bonus token are output tokens 2 to 4
N = 1500  # samples of each case
P_MIN = 1e-4
PROMPT = [50, 100, 7, 104, 101, 60, 102]
CASES = {
    "plain": Sampling(),
    "top_k_and_top_p": Sampling(top_k=4, top_p=0.8),
    "min_p": Sampling(min_p=0.25),
}
GREEDY = "greedy"

Samples = Mapping[str, Sequence[Completion]]


@pytest.fixture(scope="session")
def kept() -> dict[str, Samples]:
    return {}


@pytest.fixture
def samples(serve: Serve, kept: dict[str, Samples]) -> Samples:
    """N answers of each case, drawn once: the cases share every batch, some with a greedy one.

    Each request has a rid of its own; with the fixed --random-seed the samples repeat.
    """
    if not kept:
        kept["it"] = draw_samples(serve("law"))
    return kept["it"]


def draw_samples(server: Running) -> Samples:
    per_call = 100
    names = [*CASES] * per_call + [GREEDY] * (per_call // 10)
    parameters = [CASES[n].parameters() if n in CASES else {"temperature": 0} for n in names]
    out: dict[str, list[Completion]] = {name: [] for name in names}
    for start in range(0, N, per_call):
        body = {
            "input_ids": [PROMPT] * len(names),
            "rid": [f"{name}-{start}-{i}" for i, name in enumerate(names)],
            "sampling_params": [p | {"max_new_tokens": 4, "ignore_eos": True} for p in parameters],
        }
        for name, a in zip(names, server.client.post("/generate", body), strict=True):
            done = Completion(a["text"], tuple(a["output_ids"]), a["meta_info"])
            out[name].append(done)
    return out


def words_of(answers: Sequence[Completion], places: slice) -> list[tuple[int, ...]]:
    """Output tokens at `places`; () unless every token of the answer is a letter."""
    return [a.tokens[places] if set(a.tokens) <= set(LETTERS) else () for a in answers]


@pytest.mark.parametrize("case", CASES)
def test_joint_law_of_tokens_2_to_4(case: str, samples: Samples, pairs: Pairs) -> None:
    target = load_target(pairs.get("noisy").target).double()
    law = law_of_words(target, PROMPT, CASES[case], length=4)
    got = samples[case]
    assert p_value(words_of(got, slice(1, 4)), without_first(law)) > P_MIN
    # The same samples do not pass for another case's law.
    for other in CASES.keys() - {case}:
        wrong = law_of_words(target, PROMPT, CASES[other], length=4)
        assert p_value(words_of(got, slice(1, 4)), without_first(wrong)) < P_MIN
    # Both branches of the rule were at work.
    accepted = Counter()
    for answer in got:
        accepted.update(dict(enumerate(answer.meta["spec_correct_drafts_histogram"])))
    assert 0.2 < accepted[0] / accepted.total() < 0.8  # steps whose first draft was rejected
    assert accepted[GAMMA] / accepted.total() > 0.2  # whole windows, followed by a bonus token


@pytest.mark.parametrize("case", CASES)
def test_first_token_follows_the_target_too(case: str, samples: Samples, pairs: Pairs) -> None:
    target = load_target(pairs.get("noisy").target).double()
    law = law_of_words(target, PROMPT, CASES[case], length=1)
    assert p_value([a.tokens[:1] for a in samples[case]], law) > P_MIN


@pytest.mark.parametrize("rule", [argmax_draft_judged_as_sampled, draft_alone])
def test_a_wrong_rule_would_be_seen(rule: Rule, samples: Samples, pairs: Pairs) -> None:
    pair = pairs.get("noisy")
    target = load_target(pair.target)
    right = law_of_words(target, PROMPT, CASES["plain"], length=2)
    wrong = second_token_under(rule, target, ReferenceDraft(pair.draft, target), PROMPT)
    got = [a.tokens[:2] for a in samples["plain"]]
    assert p_value(got, right) > P_MIN
    assert p_value(draw(right, N, seed=1), right) > P_MIN
    assert p_value(draw(wrong, N, seed=1), right) < P_MIN


def test_a_greedy_request_in_a_sampled_batch_stays_greedy(samples: Samples, serve: Serve) -> None:
    assert len({a.tokens for a in samples[GREEDY]}) == 1
    alone = serve("law").client.generate(PROMPT, temperature=0, max_new_tokens=4, ignore_eos=True)
    assert samples[GREEDY][0].tokens == alone.tokens


@pytest.mark.parametrize("filters", [{"top_k": 1}, {"top_p": 1e-4}, {"min_p": 1.0}])
def test_temperature_1_that_leaves_one_token_is_temperature_0(
    filters: dict[str, float], serve: Serve
) -> None:
    client = serve("law").client
    prompts = [[*PROMPT, 3 + i] for i in range(8)]
    length = {"max_new_tokens": 40, "ignore_eos": True}
    greedy = many(client, prompts, temperature=0, **length)
    sampled = many(client, prompts, temperature=1, **filters, **length)
    assert tokens_of(sampled) == tokens_of(greedy)


def test_min_p_keeps_unlikely_tokens_out(samples: Samples, pairs: Pairs) -> None:
    """No token below a quarter of the best one, at any of the four places."""
    target = load_target(pairs.get("noisy").target).double()
    allowed = law_of_words(target, PROMPT, CASES["min_p"], length=4)
    assert {a.tokens for a in samples["min_p"]} <= allowed.keys()


def test_same_rid_repeats_and_another_rid_does_not(serve: Serve) -> None:
    """Without sampling_seed the noise is keyed by (--random-seed, rid)."""
    client = serve("law").client
    sampling = {"temperature": 1, "max_new_tokens": 30, "ignore_eos": True}
    alone = client.generate(PROMPT, rid="again", **sampling)
    rids = ["again", *(f"neighbour-{i}" for i in range(7))]
    beside = many(client, [PROMPT] * 8, rids=rids, **sampling)
    assert beside[0].tokens == alone.tokens
    assert len({a.tokens for a in beside}) == 8


def test_several_answers_of_one_request_differ(serve: Serve) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"n": 4, "max_new_tokens": 30}}
    answers = serve("law").client.post("/generate", body)
    assert len({tuple(a["output_ids"]) for a in answers}) == 4


def test_a_seeded_token_is_the_targets_own_draw(serve: Serve, pairs: Pairs) -> None:
    """argmax(p / E) with E keyed by (seed, absolute position), whatever the draft said."""
    target = load_target(pairs.get("noisy").target)
    new, seeds = 12, range(40, 48)
    sampling = [
        {"temperature": 1, "sampling_seed": seed, "max_new_tokens": new, "ignore_eos": True}
        for seed in seeds
    ]
    body = {"input_ids": [PROMPT] * len(seeds), "sampling_params": sampling}
    answers = serve("law").client.post("/generate", body)
    checked = 0
    for seed, answer in zip(seeds, answers, strict=True):
        ids = [*PROMPT, *answer["output_ids"]]
        for position in range(len(PROMPT), len(ids)):
            p = Sampling().filter(next_logits(target, [ids[:position]])[0])
            race = p / coupled_exponentials(seed, position, len(p))
            runner_up, best = np.sort(race)[-2:]
            if np.log(best / runner_up) > 1e-4:  # not a near-tie
                assert int(race.argmax()) == ids[position]
                checked += 1
    assert checked > 0.9 * new * len(seeds)
