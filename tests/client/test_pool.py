"""Choice of the least loaded engine."""

from rondo.client.pool import LeastLoaded, PooledEngine


def test_the_engine_with_the_least_work_is_chosen_and_equal_ones_take_turns() -> None:
    engines = [PooledEngine(f"http://{number}") for number in range(3)]
    balance = LeastLoaded()
    taken = []
    for work in (4, 1, 4, 1, 1):
        engine = balance.choose(engines)
        balance.begin(engine, work)
        taken.append(engine.url[-1])
    assert taken == ["0", "1", "2", "1", "1"]
    balance.end(engines[0], 4)
    balance.end(engines[2], 4)
    assert [balance.choose(engines) is engines[0], engines[0].requests] == [True, 0]


def test_cached_work_is_subtracted() -> None:
    busy, idle = PooledEngine("http://0"), PooledEngine("http://1")
    balance = LeastLoaded()
    balance.begin(busy, 5)
    assert balance.choose([busy, idle], {busy: 6, idle: 0}.__getitem__) is busy
    assert balance.choose([busy, idle], {busy: 4, idle: 0}.__getitem__) is idle
