"""What an unmodified redis-py does against a cluster: `redis.py PORT...`; ends with 0 or an error."""

import sys

import redis

PORTS = [int(word) for word in sys.argv[1:]]


def check(name, found, expected):
    if found != expected:
        sys.exit(f"redis-py: {name}: {found!r}, expected {expected!r}")


def commands(port, protocol):
    client = redis.Redis(port=port, protocol=protocol, decode_responses=True)
    p = f"py:{port}:{protocol}"
    check("ping", client.ping(), True)
    check("set", client.set(f"{p}:a", "1"), True)
    check("get", client.get(f"{p}:a"), "1")
    check("get of nothing", client.get(f"{p}:none"), None)
    check("set nx of what exists", client.set(f"{p}:a", "2", nx=True), None)
    check("set get", client.set(f"{p}:a", "2", get=True), "1")

    check("mset", client.mset({f"{p}:m{i}": f"value {i}" for i in range(100)}), True)
    keys = [f"{p}:m{i}" for i in range(101)]
    check("mget", client.mget(keys), [f"value {i}" for i in range(100)] + [None])
    check("scan_iter", set(client.scan_iter(match=f"{p}:m*", count=7)), set(keys[:100]))
    check("exists", client.exists(*keys), 100)

    check("incr", [client.incr(f"{p}:n") for _ in range(10)], list(range(1, 11)))
    check("incrby, decr", (client.incrby(f"{p}:n", 5), client.decr(f"{p}:n")), (15, 14))
    check("append", client.append(f"{p}:a", "34"), 3)
    check("strlen", client.strlen(f"{p}:a"), 3)
    check("getrange", client.getrange(f"{p}:a", 0, 1), "23")

    for transaction in (True, False):
        pipe = client.pipeline(transaction=transaction)
        for i in range(50):
            pipe.set(f"{p}:p{i}", i)
            pipe.incr(f"{p}:pn:{transaction}")
            pipe.get(f"{p}:p{i}")
        expected = [x for i in range(50) for x in (True, i + 1, str(i))]
        check(f"pipeline, transaction={transaction}", pipe.execute(), expected)

    try:
        client.incr(f"{p}:m0")
        sys.exit("redis-py: incr of words did not fail")
    except redis.ResponseError as error:
        check("incr of words", str(error), "value is not an integer or out of range")
    pipe = client.pipeline(transaction=False)
    pipe.incr(f"{p}:m0").get(f"{p}:m1")
    found = pipe.execute(raise_on_error=False)
    check("an error amid a pipeline", (type(found[0]), found[1]), (redis.ResponseError, "value 1"))

    check("delete", client.delete(f"{p}:m0", f"{p}:m1", f"{p}:none"), 2)
    check("get of the deleted", client.get(f"{p}:m0"), None)
    check("info", client.info("server")["tcp_port"], port)

    binary = redis.Redis(port=port, protocol=protocol)
    value = bytes(range(256)) * 1000
    check("set of bytes", binary.set(f"{p}:\0\r\n", value), True)
    check("get of bytes", binary.get(f"{p}:\0\r\n"), value)


for port in PORTS:
    for protocol in (2, 3):
        commands(port, protocol)

# What one port was told, every port knows.
clients = [redis.Redis(port=port, protocol=3) for port in PORTS]
for i in range(100):
    clients[i % len(clients)].set("py:shared", i)
    for client in clients:
        check("a write at one port, read at another", client.get("py:shared"), b"%d" % i)
print(f"redis-py {redis.__version__}: as expected on {len(PORTS)} ports, RESP2 and RESP3")
