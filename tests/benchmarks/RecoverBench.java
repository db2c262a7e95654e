import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.file.Paths;
import java.util.Locale;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * How long the broker's store library takes to bring a store back: from before load() until log, queues and
 * index are level. `RecoverBench FOLDER` answers with a line of JSON when they are, and closes the store and
 * ends when stdin does. A process for each run, as a broker starts after a crash; the JVM's start is not
 * counted.
 */
public final class RecoverBench {
    private RecoverBench() {
    }

    public static void main(String[] arguments) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(arguments[0]);
        config.setStorePathCommitLog(Paths.get(arguments[0], "commitlog").toString());
        config.setMappedFileSizeCommitLog(Integer.parseInt(arguments[1]));
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("bench", true), null, new BrokerConfig(), new ConcurrentHashMap<>());
        long begun = System.nanoTime();
        boolean loaded = store.load();
        long scanned = System.nanoTime();
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long complete = System.nanoTime();
        long dispatched = 0;
        for (Map.Entry<String, ? extends ConcurrentMap<Integer, ?>> topic : store.getConsumeQueueTable().entrySet()) {
            for (int queue : topic.getValue().keySet()) {
                dispatched += store.getMaxOffsetInQueue(topic.getKey(), queue);
            }
        }
        System.out.println(String.format(Locale.ROOT,
            "{\"loaded\": %b, \"load_seconds\": %.6f, \"complete_seconds\": %.6f, \"max\": %d, \"dispatched\": %d}",
            loaded, (scanned - begun) / 1e9, (complete - begun) / 1e9, store.getMaxPhyOffset(), dispatched));
        new BufferedReader(new InputStreamReader(System.in)).readLine();
        store.shutdown();
        System.exit(0);
    }
}
