// The work of a program with Lettuce's cluster client: `java LettuceClusterCheck.java PORT`; ends
// with 0 or an error. PORT is one of a group's doors.

import io.lettuce.core.KeyScanCursor;
import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.SlotHash;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

public class LettuceClusterCheck {
    static final String NAME = "clients:lettuce-cluster";
    static final int KEYS = 4000;
    static final String ADD = "return redis.call('INCRBY', KEYS[1], ARGV[1])";

    static void check(String what, Object found, Object expected) {
        if (found == null ? expected != null : !found.equals(expected)) {
            System.err.println(
                "Lettuce's cluster client: " + what + ": " + found + ", expected " + expected);
            System.exit(1);
        }
    }

    static void keys(StatefulRedisClusterConnection<String, String> connection) throws Exception {
        var commands = connection.async();
        List<RedisFuture<String>> found = new ArrayList<>();
        for (int i = 0; i < KEYS; i++) {
            commands.set(NAME + ":" + i, "" + i);
            found.add(commands.get(NAME + ":" + i));
        }
        for (int i = 0; i < KEYS; i++) check("pipeline", found.get(i).get(), "" + i);
    }

    static void oneSlot(StatefulRedisClusterConnection<String, String> connection) {
        var commands = connection.sync();
        for (int i = 0; i < 50; i++) {
            String a = NAME + ":{" + i + "}:a";
            String b = NAME + ":{" + i + "}:b";
            check("MSET", commands.mset(Map.of(a, "1", b, "2")), "OK");
            var values = commands.mget(a, b).stream().map(it -> it.getValue()).toList();
            check("MGET", values, List.of("1", "2"));
            // Its transactions are those of a connection to one node.
            var node = connection.getPartitions().getPartitionBySlot(SlotHash.getSlot(a));
            var transaction = connection.getConnection(node.getNodeId()).sync();
            transaction.multi();
            transaction.incr(a);
            transaction.incr(b);
            check("MULTI", transaction.exec().stream().toList(), List.of(2L, 3L));
            Object added = commands.eval(ADD, ScriptOutputType.INTEGER, new String[] {a}, "5");
            check("EVAL", added, 7L);
        }
    }

    // Commands with keys of several slots are asked for by slot, and answers are put together.
    static void severalSlots(StatefulRedisClusterConnection<String, String> connection) {
        String[] keys = {NAME + ":1", NAME + ":2", NAME + ":3"};
        var found = connection.sync().mget(keys).stream().map(it -> it.getValue()).toList();
        check("MGET over several slots", found, List.of("1", "2", "3"));
        check("EXISTS over several slots", connection.sync().exists(keys), 3L);
    }

    static void allKeys(StatefulRedisClusterConnection<String, String> connection) {
        Set<String> found = new HashSet<>();
        ScanArgs args = ScanArgs.Builder.limit(100).match(NAME + ":*");
        KeyScanCursor<String> cursor = connection.sync().scan(args);
        found.addAll(cursor.getKeys());
        while (!cursor.isFinished()) {
            cursor = connection.sync().scan(cursor, args);
            found.addAll(cursor.getKeys());
        }
        check("SCAN", found.size(), KEYS + 100);
    }

    public static void main(String[] args) throws Exception {
        var door = RedisURI.create("127.0.0.1", Integer.parseInt(args[0]));
        var redis = RedisClusterClient.create(door);
        try (var connection = redis.connect()) {
            keys(connection);
            oneSlot(connection);
            severalSlots(connection);
            allKeys(connection);
        }
        redis.shutdown();
        System.out.println("Lettuce " + LettuceVersion.getVersion() + ", cluster: " + KEYS
                + " keys, pipeline, transactions, scan");
    }
}
