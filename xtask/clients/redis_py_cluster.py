"""What a program does with redis-py's cluster client: `redis_py_cluster.py PORT`; ends with 0 or an
error. PORT is one of a group's doors."""

import sys

import redis
from redis.cluster import RedisCluster

NAME = "clients:redis-py-cluster"
KEYS = 4000
ADD = 'return redis.call("INCRBY", KEYS[1], ARGV[1])'


def check(what, found, expected):
    if found != expected:
        sys.exit(f"redis-py's cluster client: {what}: {found!r}, expected {expected!r}")


def keys(client):
    for i in range(KEYS):
        client.set(f"{NAME}:{i}", i)
    for i in range(0, KEYS, 7):
        check("GET", client.get(f"{NAME}:{i}"), str(i).encode())


def pipeline(client):
    pipe = client.pipeline()
    for i in range(KEYS):
        pipe.get(f"{NAME}:{i}")
    check("pipeline", pipe.execute(), [str(i).encode() for i in range(KEYS)])


def one_slot(client):
    for i in range(50):
        tag = f"{NAME}:{{{i}}}"
        check("MSET", client.mset({f"{tag}:a": 1, f"{tag}:b": 2}), True)
        check("MGET", client.mget(f"{tag}:a", f"{tag}:b"), [b"1", b"2"])
        pipe = client.pipeline(transaction=True)
        check("MULTI", pipe.incr(f"{tag}:a").incr(f"{tag}:b").execute(), [2, 3])
        check("EVAL", client.eval(ADD, 1, f"{tag}:a", 5), 7)


def several_slots(client):
    found = client.mget_nonatomic(f"{NAME}:1", f"{NAME}:2", f"{NAME}:3")
    check("mget_nonatomic", found, [b"1", b"2", b"3"])


def all_keys(client):
    found = set(client.scan_iter(match=f"{NAME}:*", count=100))
    check("SCAN", len(found), KEYS + 100)
    size = client.dbsize(target_nodes=RedisCluster.PRIMARIES)
    check("DBSIZE", size >= KEYS + 100, True)


client = RedisCluster(host="127.0.0.1", port=int(sys.argv[1]))
keys(client)
pipeline(client)
one_slot(client)
several_slots(client)
all_keys(client)
print(f"redis-py {redis.__version__}, cluster: {KEYS} keys, pipeline, transactions, scan")
