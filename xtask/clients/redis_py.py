"""What a program does with redis-py: `redis_py.py PORT`; ends with 0 or an error."""

import os
import signal
import sys
import time

import redis

NAME = "clients:redis-py"
PATIENCE = 60
RELEASE = 'if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0'


def check(what, found, expected):
    if found != expected:
        sys.exit(f"redis-py: {what}: {found!r}, expected {expected!r}")


def pipeline(client):
    pipe = client.pipeline(transaction=False)
    for i in range(1000):
        pipe.set(f"{NAME}:p{i}", i).get(f"{NAME}:p{i}")
    expected = [x for i in range(1000) for x in (True, str(i).encode())]
    check("pipeline", pipe.execute(), expected)


def transact(client, other):
    check("MULTI", client.pipeline().set(f"{NAME}:t", 1).incr(f"{NAME}:t").execute(), [True, 2])
    with client.pipeline() as pipe:
        pipe.watch(f"{NAME}:t")
        found = int(pipe.get(f"{NAME}:t"))
        pipe.multi()
        check("WATCH", pipe.set(f"{NAME}:t", found + 1).execute(), [True])
        pipe.watch(f"{NAME}:t")
        other.set(f"{NAME}:t", 10)
        pipe.multi()
        try:
            pipe.set(f"{NAME}:t", 0).execute()
            sys.exit("redis-py: EXEC ran although a watched key had changed")
        except redis.WatchError:
            check("what another set", client.get(f"{NAME}:t"), b"10")


def scan(client):
    keys = {f"{NAME}:p{i}".encode() for i in range(1000)}
    check("SCAN", set(client.scan_iter(match=f"{NAME}:p*", count=10)), keys)


def lock(client, other):
    key = f"{NAME}:lock"
    check("SET NX", client.set(key, "mine", nx=True, px=30_000), True)
    check("SET NX of a held lock", other.set(key, "theirs", nx=True, px=30_000), None)
    check("release by another", other.eval(RELEASE, 1, key, "theirs"), 0)
    check("release", client.eval(RELEASE, 1, key, "mine"), 1)
    held = client.lock(f"{NAME}:Lock", timeout=30)
    check("Lock", held.acquire(blocking=False), True)
    check("Lock of another", other.lock(f"{NAME}:Lock").acquire(blocking=False), False)
    check("extend", held.extend(30), True)
    held.release()


def reconnect(client):
    check("INCR", [client.incr(f"{NAME}:n") for _ in range(100)][-1], 100)
    os.kill(client.info("server")["process_id"], signal.SIGKILL)
    until = time.monotonic() + PATIENCE
    acknowledged = 100
    while acknowledged < 110:
        try:
            client.incr(f"{NAME}:n")
            acknowledged += 1
        except redis.RedisError as error:
            if time.monotonic() > until:
                sys.exit(f"redis-py: no write {PATIENCE} s after the node was killed: {error}")
            time.sleep(0.05)
    found = int(client.get(f"{NAME}:n"))
    if found < acknowledged:
        sys.exit(f"redis-py: {found} increments after {acknowledged} were acknowledged")
    check("what was set before", client.get(f"{NAME}:p999"), b"999")


port = int(sys.argv[1])
client, other = redis.Redis(port=port), redis.Redis(port=port)
pipeline(client)
transact(client, other)
scan(client)
lock(client, other)
reconnect(client)
print(f"redis-py {redis.__version__}: pipeline, transactions, scan, locks, reconnect on port {port}")
