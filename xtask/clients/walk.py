"""Writes numbered values with redis-py and logs what is acknowledged: `walk.py OPTIONS`, a file of
JSON. Ends when its input does, and says the longest time between two answers."""

import json
import sys
import threading
import time

import redis
from redis.backoff import ConstantBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

CLIENT = "redis-py"
# A command that is not answered is given up, and sent again on another connection.
TIMEOUT_S = 0.5
PAUSE_S = 0.05

with open(sys.argv[1]) as file:
    options = json.load(file)
doors = [door.rsplit(":", 1) for door in options["doors"]]
common = {
    "ssl": True,
    "ssl_ca_certs": options["ca"],
    "username": options["user"],
    "password": options["password"],
    "socket_timeout": TIMEOUT_S,
    "socket_connect_timeout": TIMEOUT_S,
}
over = threading.Event()
lock = threading.Lock()
log = open(options["log"], "w", buffering=1)
longest = dict.fromkeys(options["tags"], 0.0)


def of_cluster():
    nodes = [ClusterNode(host, int(port)) for host, port in doors]
    return RedisCluster(startup_nodes=nodes, retry=Retry(ConstantBackoff(PAUSE_S), 3), **common)


def of_group(turn):
    host, port = doors[turn % len(doors)]
    return redis.Redis(host=host, port=int(port), retry=Retry(ConstantBackoff(0), 0), **common)


def write(tag):
    client, turn, number, last = shared, 0, 0, time.monotonic()
    while not over.is_set():
        if client is None:
            client = of_group(turn)
        try:
            client.set(f"{options['prefix']}{{{tag}}}:{CLIENT}:{number}", number)
        except redis.RedisError as error:
            print(f"{time.time():.3f} {tag} {number}: {type(error).__name__}: {error}", flush=True)
            if shared is None:
                client, turn = None, turn + 1
            time.sleep(PAUSE_S)
            continue
        now = time.monotonic()
        with lock:
            log.write(f"{int(time.time() * 1000)} {tag} {number}\n")
        longest[tag] = max(longest[tag], now - last)
        number, last = number + 1, now
        time.sleep(options["pause_ms"] / 1000)


shared = of_cluster() if options["cluster"] else None
threads = [threading.Thread(target=write, args=(tag,)) for tag in options["tags"]]
for thread in threads:
    thread.start()
sys.stdin.read()
over.set()
for thread in threads:
    thread.join()
print({tag: f"{seconds * 1000:.0f} ms" for tag, seconds in longest.items()})
