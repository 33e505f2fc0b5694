"""Which engine a request goes to."""

import random
from collections import OrderedDict

import pytest

from rondo.base.errors import NotFound, Unavailable
from rondo.control.config import RouterConfig
from rondo.control.routing.router import Instance, Route, Router

CONFIG = RouterConfig(piece=10, failures=2, shut=5.0, decode_factor=1.0)


def router_of(count: int, config: RouterConfig = CONFIG) -> tuple[Router, list[Instance], list[float]]:
    instances = [Instance(f"http://{i}", models=frozenset({"m"})) for i in range(count)]
    now = [0.0]
    return Router(instances, config, lambda: now[0]), instances, now


def test_the_least_busy_gets_it_and_equals_take_turns() -> None:
    router, instances, _ = router_of(3)
    routes = [router.choose("m", b"%d" % i * 5) for i in range(3)]
    assert [route.instance for route in routes] == instances
    router.ended(routes[1], well=True)
    assert router.choose("m", b"zzzzz").instance is instances[1]
    for route in routes[::2]:
        router.ended(route, well=True)
    assert [router.choose("m", b"q").instance.url for _ in range(2)] == ["http://0", "http://2"]


def test_a_beginning_that_was_sent_before_draws_until_it_costs_more_than_it_saves() -> None:
    router, _, _ = router_of(2)
    system = b"s" * 100
    first = router.choose("m", system + b"a" * 10)
    router.ended(first, well=True)
    again = [router.choose("m", system + c.encode() * 10) for c in "bcdefghijklm"]
    assert [route.instance is first.instance for route in again[:9]] == [True] * 9
    assert again[0].known == 100
    assert any(route.instance is not first.instance for route in again), (
        "a hundred characters are worth no more"
    )


def test_adapters_do_not_share_what_is_known() -> None:
    instances = [
        Instance("http://0", models=frozenset({"m", "lora"})),
        Instance("http://1", models=frozenset({"m"})),
    ]
    router = Router(instances, CONFIG)
    prompt = b"p" * 50
    router.ended(router.choose("m", prompt), well=True)
    assert router.choose("lora", prompt).known == 0
    assert router.choose("lora", prompt).known == 50


def test_what_is_remembered_is_bounded_and_ends_go_before_beginnings() -> None:
    router, (instance,), _ = router_of(1, RouterConfig(piece=10, pieces=3))
    router.choose("m", b"a" * 30)
    assert router.choose("m", b"a" * 30).known == 30
    router.choose("m", b"b" * 10)
    assert router.prefixes.of(instance.bit) == 3
    assert router.choose("m", b"a" * 30).known == 20


def test_only_so_much_of_a_prompt_is_looked_at() -> None:
    router, (instance,), _ = router_of(1, RouterConfig(piece=10, longest=2))
    router.choose("m", b"a" * 1000)
    assert router.prefixes.of(instance.bit) == 2
    assert router.choose("m", b"short").known == 0


def fail(router: Router, times: int) -> list[Route]:
    routes = [router.choose("m", b"p") for _ in range(times)]
    for route in routes:
        router.ended(route, well=False)
    return routes


def test_who_fails_is_left_alone_and_then_tried_with_one_request() -> None:
    router, instances, now = router_of(1)
    fail(router, 2)
    with pytest.raises(Unavailable, match="No engine that serves 'm' is ready"):
        router.choose("m", b"p")
    now[0] = 5.0
    probe = router.choose("m", b"p")
    with pytest.raises(Unavailable):
        router.choose("m", b"p")
    router.ended(probe, well=False)
    with pytest.raises(Unavailable):
        router.choose("m", b"p")
    now[0] = 10.0
    router.ended(router.choose("m", b"p"), well=True)
    assert [router.choose("m", b"p").instance for _ in range(3)] == instances * 3
    assert instances[0].failures == 0


def test_a_withdrawn_request_leaves_an_open_circuit_as_it_is() -> None:
    router, instances, now = router_of(1)
    fail(router, 2)
    now[0] = 5.0
    router.ended(router.choose("m", b"p"), well=None)
    assert (instances[0].failures, instances[0].requests) == (2, 0)
    router.choose("m", b"p")
    with pytest.raises(Unavailable):
        router.choose("m", b"p")


def test_what_broke_off_is_tried_elsewhere_and_the_cache_of_who_failed_is_thought_empty() -> None:
    router, instances, _ = router_of(2)
    prompt = b"p" * 40
    first = router.choose("m", prompt)
    router.ended(first, well=False)
    assert router.choose("m", prompt, without=[instances[1 - instances.index(first.instance)].url]).known == 0
    second = router.choose("m", prompt, without=[first.instance.url])
    assert second.instance is not first.instance
    with pytest.raises(Unavailable):
        router.choose("m", prompt, without=[each.url for each in instances])


@pytest.mark.parametrize("state", [{"healthy": False}, {"draining": True}])
def test_who_is_ill_or_drains_gets_nothing(state: dict[str, bool]) -> None:
    router, instances, _ = router_of(2)
    for name, value in state.items():
        setattr(instances[0], name, value)
    assert {router.choose("m", b"p").instance.url for _ in range(4)} == {"http://1"}


def test_an_unknown_model_is_not_found() -> None:
    with pytest.raises(NotFound, match="The model 'x' does not exist"):
        router_of(1)[0].choose("x", b"p")


def test_all_work_that_was_given_is_taken_back() -> None:
    router, instances, _ = router_of(3)
    draw = random.Random(0)
    under_way = list[Route]()
    for _ in range(500):
        if under_way and draw.random() < 0.5:
            router.ended(under_way.pop(draw.randrange(len(under_way))), well=draw.random() < 0.95)
        else:
            for each in instances:
                each.open_until = 0.0
            try:
                under_way.append(router.choose("m", b"ab" * draw.randrange(40), draw.randrange(100)))
            except Unavailable:
                continue
    for route in under_way:
        router.ended(route, well=True)
    assert [(each.work, each.requests) for each in instances] == [(0, 0)] * 3


def hits(pick: str) -> float:
    """The share of characters found in four caches of a hundred pieces, of prompts with one of twelve beginnings."""
    router, instances, _ = router_of(4, RouterConfig(piece=10, pieces=100, decode_factor=1.0))
    caches = [OrderedDict[bytes, None]() for _ in instances]
    draw, found, asked, under_way = random.Random(0), 0, 0, list[Route]()
    for turn in range(2000):
        prompt = f"{draw.randrange(12):<3}".encode() + b"s" * 297 + f"{turn:<20}".encode()
        if pick == "router":
            under_way.append(router.choose("m", prompt))
            number = instances.index(under_way[-1].instance)
            if len(under_way) > 8:
                router.ended(under_way.pop(0), well=True)
        else:
            number = turn % 4
        pieces = [prompt[:end] for end in range(10, len(prompt) + 1, 10)]
        found += sum(piece in caches[number] for piece in pieces)
        asked += len(pieces)
        for piece in reversed(pieces):
            caches[number][piece] = None
            caches[number].move_to_end(piece)
        while len(caches[number]) > 100:
            caches[number].popitem(last=False)
    return found / asked


def test_beginnings_that_do_not_all_fit_everywhere_are_found_far_more_often_than_by_turns() -> None:
    assert hits("router") > 0.7
    assert hits("turns") < 0.3
