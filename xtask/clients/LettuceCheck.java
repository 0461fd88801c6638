// What a program does with Lettuce: `java LettuceCheck.java PORT`; ends with 0 or an error.

import io.lettuce.core.LettuceVersion;
import io.lettuce.core.RedisClient;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisFuture;
import io.lettuce.core.RedisURI;
import io.lettuce.core.ScanArgs;
import io.lettuce.core.ScanIterator;
import io.lettuce.core.ScriptOutputType;
import io.lettuce.core.SetArgs;
import io.lettuce.core.TransactionResult;
import io.lettuce.core.api.StatefulRedisConnection;
import io.lettuce.core.api.sync.RedisCommands;
import io.lettuce.core.codec.StringCodec;
import io.lettuce.core.masterreplica.MasterReplica;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import java.util.regex.Pattern;

public class LettuceCheck {
    static final String NAME = "clients:lettuce";
    static final long PATIENCE_MS = 60_000;
    static final String RELEASE =
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

    static void check(String what, Object found, Object expected) {
        if (found == null ? expected != null : !found.equals(expected)) {
            System.err.println("Lettuce: " + what + ": " + found + ", expected " + expected);
            System.exit(1);
        }
    }

    static void pipeline(StatefulRedisConnection<String, String> connection) throws Exception {
        var commands = connection.async();
        List<RedisFuture<String>> found = new ArrayList<>();
        for (int i = 0; i < 1000; i++) {
            commands.set(NAME + ":p" + i, "" + i);
            found.add(commands.get(NAME + ":p" + i));
        }
        for (int i = 0; i < 1000; i++) check("pipeline", found.get(i).get(), "" + i);
    }

    static void transact(RedisCommands<String, String> client, RedisCommands<String, String> other) {
        String key = NAME + ":t";
        client.multi();
        client.set(key, "1");
        client.incr(key);
        check("MULTI", client.exec().stream().toList(), List.of("OK", 2L));
        check("WATCH", increment(client, key, () -> {}).stream().toList(), List.of(3L));
        TransactionResult discarded = increment(client, key, () -> other.set(key, "10"));
        check("EXEC after a watched key changed", discarded.wasDiscarded(), true);
        check("what another set", client.get(key), "10");
    }

    static TransactionResult increment(RedisCommands<String, String> client, String key, Runnable meanwhile) {
        client.watch(key);
        meanwhile.run();
        client.multi();
        client.incr(key);
        return client.exec();
    }

    static void scan(RedisCommands<String, String> client) {
        Set<String> found = new HashSet<>();
        ScanIterator.scan(client, ScanArgs.Builder.limit(10).match(NAME + ":p*")).forEachRemaining(found::add);
        check("SCAN", found.size(), 1000);
    }

    static void lock(RedisCommands<String, String> client, RedisCommands<String, String> other) {
        String key = NAME + ":lock";
        SetArgs args = SetArgs.Builder.nx().px(30_000);
        check("SET NX", client.set(key, "mine", args), "OK");
        check("SET NX of a held lock", other.set(key, "theirs", args), null);
        String[] keys = {key};
        Object refused = other.eval(RELEASE, ScriptOutputType.INTEGER, keys, "theirs");
        check("release by another", refused, 0L);
        Object released = client.eval(RELEASE, ScriptOutputType.INTEGER, keys, "mine");
        check("release", released, 1L);
    }

    // Finds the head by what ROLE says, and writes there.
    static void masterReplica(RedisClient redis, RedisURI uri) {
        try (var connection = MasterReplica.connect(redis, StringCodec.UTF8, uri)) {
            check("MasterReplica", connection.sync().set(NAME + ":m", "1"), "OK");
            check("MasterReplica", connection.sync().get(NAME + ":m"), "1");
        }
    }

    static void reconnect(RedisCommands<String, String> client) throws InterruptedException {
        String key = NAME + ":n";
        long acknowledged = 0;
        for (; acknowledged < 100; acknowledged++) client.incr(key);
        var pid = Pattern.compile("process_id:(\\d+)").matcher(client.info("server"));
        check("process_id", pid.find(), true);
        ProcessHandle.of(Long.parseLong(pid.group(1))).orElseThrow().destroyForcibly();
        long until = System.currentTimeMillis() + PATIENCE_MS;
        while (acknowledged < 110) {
            try {
                client.incr(key);
                acknowledged++;
            } catch (RedisException error) {
                if (System.currentTimeMillis() > until) throw error;
                Thread.sleep(50);
            }
        }
        long found = Long.parseLong(client.get(key));
        check("increments are there: " + found + " of " + acknowledged, found >= acknowledged, true);
        check("what was set before", client.get(NAME + ":p999"), "999");
    }

    public static void main(String[] args) throws Exception {
        RedisURI uri = RedisURI.create("127.0.0.1", Integer.parseInt(args[0]));
        RedisClient redis = RedisClient.create(uri);
        try (var connection = redis.connect(); var second = redis.connect()) {
            pipeline(connection);
            transact(connection.sync(), second.sync());
            scan(connection.sync());
            lock(connection.sync(), second.sync());
            masterReplica(redis, uri);
            reconnect(connection.sync());
        }
        redis.shutdown();
        System.out.println("Lettuce " + LettuceVersion.getVersion()
                + ": pipeline, transactions, scan, lock, MasterReplica, reconnect on port " + args[0]);
    }
}
