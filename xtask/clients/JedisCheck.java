// What a program does with Jedis: `java JedisCheck.java PORT`; ends with 0 or an error.

import java.util.HashSet;
import java.util.List;
import java.util.Properties;
import java.util.Set;
import java.util.regex.Pattern;
import redis.clients.jedis.AbstractTransaction;
import redis.clients.jedis.RedisClient;
import redis.clients.jedis.Response;
import redis.clients.jedis.ScanIteration;
import redis.clients.jedis.exceptions.JedisException;
import redis.clients.jedis.params.SetParams;

public class JedisCheck {
    static final String NAME = "clients:jedis";
    static final long PATIENCE_MS = 60_000;
    static final String RELEASE =
            "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0";

    static void check(String what, Object found, Object expected) {
        if (found == null ? expected != null : !found.equals(expected)) {
            System.err.println("Jedis: " + what + ": " + found + ", expected " + expected);
            System.exit(1);
        }
    }

    static void pipeline(RedisClient client) {
        try (var pipe = client.pipelined()) {
            Response<?>[] found = new Response<?>[1000];
            for (int i = 0; i < 1000; i++) {
                pipe.set(NAME + ":p" + i, "" + i);
                found[i] = pipe.get(NAME + ":p" + i);
            }
            pipe.sync();
            for (int i = 0; i < 1000; i++) check("pipeline", found[i].get(), "" + i);
        }
    }

    static void transact(RedisClient client) {
        String key = NAME + ":t";
        try (AbstractTransaction transaction = client.multi()) {
            transaction.set(key, "1");
            transaction.incr(key);
            check("MULTI", transaction.exec(), List.of("OK", 2L));
        }
        check("WATCH", increment(client, key, () -> {}), List.of(3L));
        check("EXEC after a watched key changed", increment(client, key, () -> client.set(key, "10")), null);
        check("what another set", client.get(key), "10");
    }

    static List<Object> increment(RedisClient client, String key, Runnable meanwhile) {
        try (AbstractTransaction transaction = client.transaction(false)) {
            transaction.watch(key);
            meanwhile.run();
            transaction.multi();
            transaction.incr(key);
            return transaction.exec();
        }
    }

    static void scan(RedisClient client) {
        Set<String> found = new HashSet<>();
        ScanIteration keys = client.scanIteration(10, NAME + ":p*");
        while (!keys.isIterationCompleted()) found.addAll(keys.nextBatchList());
        check("SCAN", found.size(), 1000);
    }

    static void lock(RedisClient client) {
        String key = NAME + ":lock";
        SetParams params = new SetParams().nx().px(30_000);
        check("SET NX", client.set(key, "mine", params), "OK");
        check("SET NX of a held lock", client.set(key, "theirs", params), null);
        check("release by another", client.eval(RELEASE, List.of(key), List.of("theirs")), 0L);
        check("release", client.eval(RELEASE, List.of(key), List.of("mine")), 1L);
    }

    static void reconnect(RedisClient client) throws InterruptedException {
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
            } catch (JedisException error) {
                if (System.currentTimeMillis() > until) throw error;
                Thread.sleep(50);
            }
        }
        long found = Long.parseLong(client.get(key));
        check("increments are there: " + found + " of " + acknowledged, found >= acknowledged, true);
        check("what was set before", client.get(NAME + ":p999"), "999");
    }

    public static void main(String[] args) throws Exception {
        try (RedisClient client = RedisClient.create("127.0.0.1", Integer.parseInt(args[0]))) {
            pipeline(client);
            transact(client);
            scan(client);
            lock(client);
            reconnect(client);
        }
        Properties about = new Properties();
        try (var file = RedisClient.class.getResourceAsStream("pom.properties")) {
            about.load(file);
        }
        System.out.println("Jedis " + about.getProperty("version")
                + ": pipeline, transactions, scan, lock, reconnect on port " + args[0]);
    }
}
