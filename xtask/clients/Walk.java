// Writes numbered values with Lettuce's cluster client and logs what is acknowledged: `java
// Walk.java OPTIONS`, a file of JSON. Ends when its input does, and says the longest time between
// answers.

import io.lettuce.core.ClientOptions;
import io.lettuce.core.RedisException;
import io.lettuce.core.RedisURI;
import io.lettuce.core.SocketOptions;
import io.lettuce.core.SslOptions;
import io.lettuce.core.TimeoutOptions;
import io.lettuce.core.cluster.ClusterClientOptions;
import io.lettuce.core.cluster.ClusterTopologyRefreshOptions;
import io.lettuce.core.cluster.RedisClusterClient;
import io.lettuce.core.cluster.api.StatefulRedisClusterConnection;
import io.lettuce.core.cluster.api.sync.RedisAdvancedClusterCommands;
import java.io.File;
import java.io.FileWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Walk {
    static final String CLIENT = "Lettuce";
    // A command that is not answered is given up, and sent again.
    static final Duration TIMEOUT = Duration.ofMillis(500);
    static final Duration REFRESH = Duration.ofMillis(500);
    static final long PAUSE_MS = 50;

    static volatile boolean isOver;
    static FileWriter log;

    // The options are flat: texts without escapes, lists of them, numbers.
    static String option(String json, String name) {
        String value = "(\"[^\"]*\"|\\[[^\\]]*\\]|\\d+)";
        Matcher found = Pattern.compile('"' + name + "\":" + value).matcher(json);
        if (!found.find()) throw new IllegalArgumentException(name);
        return found.group(1).replace("\"", "").replace("[", "").replace("]", "");
    }

    static void write(
            RedisAdvancedClusterCommands<String, String> commands,
            String prefix,
            String tag,
            long pauseMs) throws Exception {
        long number = 0, longest = 0, last = System.nanoTime();
        while (!isOver) {
            try {
                commands.set(prefix + "{" + tag + "}:" + CLIENT + ":" + number, "" + number);
            } catch (RedisException error) {
                long at = System.currentTimeMillis();
                System.out.println(at + " " + tag + " " + number + " " + error);
                Thread.sleep(PAUSE_MS);
                continue;
            }
            long now = System.nanoTime();
            synchronized (log) {
                log.write(System.currentTimeMillis() + " " + tag + " " + number + "\n");
                log.flush();
            }
            longest = Math.max(longest, now - last);
            last = now;
            number++;
            Thread.sleep(pauseMs);
        }
        System.out.println(tag + " " + longest / 1_000_000 + " ms");
    }

    // A machine that is cold takes long for the first connections with TLS.
    static StatefulRedisClusterConnection<String, String> connect(RedisClusterClient redis) {
        while (true) {
            try {
                return redis.connect();
            } catch (RedisException error) {
                System.out.println(System.currentTimeMillis() + " " + error);
            }
        }
    }

    public static void main(String[] args) throws Exception {
        String json = Files.readString(Path.of(args[0]));
        List<RedisURI> doors = new ArrayList<>();
        char[] password = option(json, "password").toCharArray();
        for (String door : option(json, "doors").split(",")) {
            int colon = door.lastIndexOf(':');
            doors.add(RedisURI.builder()
                    .withHost(door.substring(0, colon))
                    .withPort(Integer.parseInt(door.substring(colon + 1)))
                    .withSsl(true)
                    .withAuthentication(option(json, "user"), password)
                    .withTimeout(TIMEOUT)
                    .build());
        }
        RedisClusterClient redis = RedisClusterClient.create(doors);
        redis.setOptions(ClusterClientOptions.builder()
                .sslOptions(SslOptions.builder().trustManager(new File(option(json, "ca"))).build())
                .socketOptions(SocketOptions.builder().connectTimeout(TIMEOUT).build())
                .timeoutOptions(TimeoutOptions.enabled(TIMEOUT))
                // A command for a node that is gone is sent again, by a newer map.
                .disconnectedBehavior(ClientOptions.DisconnectedBehavior.REJECT_COMMANDS)
                .topologyRefreshOptions(ClusterTopologyRefreshOptions.builder()
                        .enablePeriodicRefresh(REFRESH)
                        .enableAllAdaptiveRefreshTriggers()
                        .adaptiveRefreshTriggersTimeout(Duration.ofMillis(PAUSE_MS))
                        .refreshTriggersReconnectAttempts(1)
                        // The doors are asked that are given here, and not each that there is.
                        .dynamicRefreshSources(false)
                        .build())
                .build());
        log = new FileWriter(option(json, "log"));
        List<Thread> threads = new ArrayList<>();
        try (var connection = connect(redis)) {
            String prefix = option(json, "prefix");
            long pauseMs = Long.parseLong(option(json, "pause_ms"));
            for (String tag : option(json, "tags").split(",")) {
                Thread thread = new Thread(() -> {
                    try {
                        write(connection.sync(), prefix, tag, pauseMs);
                    } catch (Exception error) {
                        error.printStackTrace();
                        System.exit(1);
                    }
                });
                thread.start();
                threads.add(thread);
            }
            while (System.in.read() >= 0) {}
            isOver = true;
            for (Thread thread : threads) thread.join();
        }
        redis.shutdown();
    }
}
