import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * How fast the broker's store library answers queries by key: `LookupBench FOLDER LOG_FILE_SIZE TOPIC KEYS ROUNDS`
 * asks for every line of the file KEYS, ROUNDS times, one after the other, and answers with a line of JSON: how many
 * messages the last round gave, and the seconds of each round. The first rounds warm the JIT and the mappings.
 */
public final class LookupBench {
    private LookupBench() {
    }

    public static void main(String[] arguments) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(arguments[0]);
        config.setStorePathCommitLog(Paths.get(arguments[0], "commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.parseInt(arguments[1]));
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("bench", true), null, new BrokerConfig(), new ConcurrentHashMap<>());
        if (!store.load()) {
            throw new IllegalStateException("the store does not load");
        }
        List<String> keys = Files.readAllLines(Paths.get(arguments[3]));
        StringBuilder seconds = new StringBuilder();
        long messages = 0;
        for (int round = Integer.parseInt(arguments[4]); round > 0; round--) {
            messages = 0;
            long begun = System.nanoTime();
            for (String key : keys) {
                QueryMessageResult result = store.queryMessage(arguments[2], key, 64, 0, Long.MAX_VALUE);
                messages += result.getMessageBufferList().size();
                result.release();
            }
            seconds.append(seconds.length() > 0 ? ", " : "");
            seconds.append(String.format(Locale.ROOT, "%.6f", (System.nanoTime() - begun) / 1e9));
        }
        System.out.println("{\"messages\": " + messages + ", \"seconds\": [" + seconds + "]}");
        System.exit(0);
    }
}
