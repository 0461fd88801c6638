// The work of a program with Jedis's cluster client: `java JedisClusterCheck.java PORT`; ends with
// 0 or an error. PORT is one of a group's doors.

import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import redis.clients.jedis.HostAndPort;
import redis.clients.jedis.RedisClusterClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.ScanIteration;

public class JedisClusterCheck {
    static final String NAME = "clients:jedis-cluster";
    static final int KEYS = 4000;
    static final String ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])";

    static void check(String what, Object found, Object expected) {
        if (found == null ? expected != null : !found.equals(expected)) {
            System.err.println(
                "Jedis's cluster client: " + what + ": " + found + ", expected " + expected);
            System.exit(1);
        }
    }

    static void keys(RedisClusterClient client) {
        for (int i = 0; i < KEYS; i++) client.set(NAME + ":" + i, "" + i);
        try (var pipe = client.pipelined()) {
            Response<?>[] found = new Response<?>[KEYS];
            for (int i = 0; i < KEYS; i++) found[i] = pipe.get(NAME + ":" + i);
            pipe.sync();
            for (int i = 0; i < KEYS; i++) check("pipeline", found[i].get(), "" + i);
        }
    }

    static void oneSlot(RedisClusterClient client) {
        for (int i = 0; i < 50; i++) {
            String a = NAME + ":{" + i + "}:a";
            String b = NAME + ":{" + i + "}:b";
            check("MSET", client.mset(a, "1", b, "2"), "OK");
            check("MGET", client.mget(a, b), List.of("1", "2"));
            check("EVAL", client.eval(ADD, List.of(a), List.of("5")), 6L);
        }
    }

    static void allKeys(RedisClusterClient client) {
        Set<String> found = new HashSet<>();
        ScanIteration keys = client.scanIteration(100, NAME + ":*");
        while (!keys.isIterationCompleted()) found.addAll(keys.nextBatchList());
        check("SCAN", found.size(), KEYS + 100);
    }

    public static void main(String[] args) throws Exception {
        var door = new HostAndPort("127.0.0.1", Integer.parseInt(args[0]));
        try (var client = RedisClusterClient.create(Set.of(door))) {
            keys(client);
            oneSlot(client);
            allKeys(client);
        }
        Properties about = new Properties();
        try (var file = RedisClusterClient.class.getResourceAsStream("pom.properties")) {
            about.load(file);
        }
        System.out.println("Jedis " + about.getProperty("version") + ", cluster: " + KEYS
                + " keys, pipeline, scripts, scan");
    }
}
