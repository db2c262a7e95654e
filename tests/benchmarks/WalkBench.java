import java.io.RandomAccessFile;
import java.nio.MappedByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * How fast the broker's store library checks records: `WalkBench COMMITLOG SCRATCH ROUNDS` walks the mapped files of
 * the folder COMMITLOG with checkMessageAndReturnSize, with CRC, and answers with a line of JSON: how many records the
 * last round saw, and the seconds of each round. The first rounds warm the JIT.
 */
public final class WalkBench {
    private WalkBench() {
    }

    public static void main(String[] arguments) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(arguments[1]);
        config.setStorePathCommitLog(Paths.get(arguments[1], "commitlog").toString());
        config.setHaListenPort(0);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("bench", true), null, new BrokerConfig(), new ConcurrentHashMap<>());
        List<Path> files;
        try (Stream<Path> listed = Files.list(Paths.get(arguments[0]))) {
            files = listed.sorted().collect(Collectors.toList());
        }
        StringBuilder seconds = new StringBuilder();
        long records = 0;
        for (int round = Integer.parseInt(arguments[2]); round > 0; round--) {
            records = 0;
            long begun = System.nanoTime();
            for (Path path : files) {
                records += walk(store, path);
            }
            seconds.append(seconds.length() > 0 ? ", " : "");
            seconds.append(String.format(Locale.ROOT, "%.6f", (System.nanoTime() - begun) / 1e9));
        }
        System.out.println("{\"records\": " + records + ", \"seconds\": [" + seconds + "]}");
        System.exit(0);
    }

    private static long walk(DefaultMessageStore store, Path path) throws Exception {
        long records = 0;
        try (RandomAccessFile file = new RandomAccessFile(path.toFile(), "r")) {
            MappedByteBuffer bytes = file.getChannel().map(FileChannel.MapMode.READ_ONLY, 0, file.length());
            while (true) {
                DispatchRequest request = store.getCommitLog().checkMessageAndReturnSize(bytes, true, false);
                if (!request.isSuccess() || request.getMsgSize() <= 0) {
                    return records;
                }
                records++;
            }
        }
    }
}
