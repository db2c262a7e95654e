import com.sun.management.OperatingSystemMXBean;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.Locale;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ServiceThread;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.BrokerRole;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * How fast a slave of the broker's store library receives; stays alive between runs, so that the JIT stays warm.
 *
 * A line of stdin, `FOLDER MASTER END TOPIC QUEUES`, makes a store with default sizes in FOLDER, connects to the
 * HA port MASTER, waits until it has the log up to END and queues and index are level with it, renames the store to
 * FOLDER.written, and answers with a line of JSON: what this took after the first bytes. The end of stdin ends the
 * program.
 */
public final class SlaveBench {
    private SlaveBench() {
    }

    public static void main(String[] arguments) {
        int code = 1;
        try {
            BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
            for (String line = lines.readLine(); line != null; line = lines.readLine()) {
                String[] words = line.split(" ");
                System.out.println(
                    run(words[0], words[1], Long.parseLong(words[2]), words[3], Integer.parseInt(words[4])));
            }
            code = 0;
        } catch (Exception error) {
            error.printStackTrace();
        } finally {
            System.exit(code); // threads of a store that was not closed go on
        }
    }

    private static String run(String folder, String master, long end, String topic, int queues) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder);
        config.setStorePathCommitLog(Paths.get(folder, "commitlog").toString());
        config.setBrokerRole(BrokerRole.SLAVE);
        config.setHaListenPort(0);
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerId(1); // a master skips what has not come whole
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("bench", true), null, broker, new ConcurrentHashMap<>());
        store.load();
        store.start();
        store.updateHaMasterAddress(master);
        ((ServiceThread) store.getHaService().getHAClient()).wakeup(); // it waits for an address
        while (store.getMaxPhyOffset() == 0) {
            Thread.sleep(1); // a slave makes its first report 5 s after its start
        }
        OperatingSystemMXBean process = (OperatingSystemMXBean) ManagementFactory.getOperatingSystemMXBean();
        long started = System.nanoTime();
        long used = process.getProcessCpuTime();
        while (store.getMaxPhyOffset() < end || store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long nanos = System.nanoTime() - started;
        long cpuNanos = process.getProcessCpuTime() - used;
        long dispatched = 0;
        for (int queue = 0; queue < queues; queue++) {
            dispatched += store.getMaxOffsetInQueue(topic, queue);
        }
        store.shutdown();
        Files.move(Paths.get(folder), Paths.get(folder + ".written"));
        store.destroy(); // closes and unmaps the files; it cannot find them to delete them
        return String.format(Locale.ROOT, "{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"dispatched\": %d}",
            nanos / 1e9, cpuNanos / 1e9, dispatched);
    }
}
