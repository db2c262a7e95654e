import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetSocketAddress;
import java.nio.file.Files;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageConst;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.FlushDiskType;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * How fast the broker's store library writes; stays alive between runs, so that the JIT stays warm.
 *
 * A line of stdin, `FOLDER FLUSH_TYPE THREADS TOPICS QUEUES MESSAGES BODY_BYTES`, makes a store with default
 * sizes in FOLDER, puts MESSAGES, waits until queues and index are level with the log, renames the store to
 * FOLDER.written, and answers with a line of JSON. Message number n goes to topic n % TOPICS and queue n / TOPICS % QUEUES. The end
 * of stdin ends the program.
 */
public final class StoreBench {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final String[] TAGS = {"TagA", "TagB", "TagC", "TagD"};

    private final String folder;
    private final DefaultMessageStore store;
    private final String[] topics;
    private final int queues;
    private final int messages;
    private final byte[] body;
    private final AtomicInteger refused = new AtomicInteger();
    private final AtomicLong putNanos = new AtomicLong();

    private StoreBench(String folder, String flush, int topics, int queues, int messages, int size) throws Exception {
        this.folder = folder;
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(folder);
        config.setStorePathCommitLog(Paths.get(folder, "commitlog").toString());
        config.setFlushDiskType(FlushDiskType.valueOf(flush));
        config.setHaListenPort(0);
        this.store = new DefaultMessageStore(
            config, new BrokerStatsManager("bench", true), null, new BrokerConfig(), new ConcurrentHashMap<>());
        this.topics = new String[topics];
        for (int number = 0; number < topics; number++) {
            this.topics[number] = String.format("BenchTopic%05d", number);
        }
        this.queues = queues;
        this.messages = messages;
        this.body = new byte[size];
        for (int at = 0; at < size; at++) {
            this.body[at] = (byte) (' ' + at % 95);
        }
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            int[] numbers = java.util.Arrays.stream(words).skip(2).mapToInt(Integer::parseInt).toArray();
            StoreBench bench = new StoreBench(words[0], words[1], numbers[1], numbers[2], numbers[3], numbers[4]);
            System.out.println(bench.run(numbers[0]));
        }
        System.exit(0);
    }

    private String run(int threads) throws Exception {
        store.load();
        store.start();
        long started = System.nanoTime();
        put(threads);
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(1);
        }
        long complete = System.nanoTime();
        long bytes = store.getMaxPhyOffset();
        long dispatched = 0;
        for (String topic : topics) {
            for (int queue = 0; queue < queues; queue++) {
                dispatched += store.getMaxOffsetInQueue(topic, queue);
            }
        }
        store.shutdown();
        Files.move(Paths.get(folder), Paths.get(folder + ".written"));
        store.destroy(); // closes and unmaps the files; it cannot find them to delete them
        return String.format(Locale.ROOT,
            "{\"put_seconds\": %.6f, \"complete_seconds\": %.6f, \"bytes\": %d, \"dispatched\": %d, \"refused\": %d}",
            putNanos.get() / 1e9 / threads, (complete - started) / 1e9, bytes, dispatched, refused.get());
    }

    /** Thread t puts the messages t, t + threads, ...; only what the puts take is counted, not the making. */
    private void put(int threads) throws Exception {
        if (threads == 1) {
            putEvery(0, 1);
            return;
        }
        List<Thread> running = new ArrayList<>();
        for (int first = 0; first < threads; first++) {
            int start = first;
            Thread thread = new Thread(() -> putEvery(start, threads));
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
    }

    private void putEvery(int start, int step) {
        MessageExtBrokerInner[] block = new MessageExtBrokerInner[1024];
        int number = start;
        while (number < messages) {
            int count = 0;
            for (; count < block.length && number < messages; number += step) {
                block[count++] = message(number);
            }
            long started = System.nanoTime();
            for (int at = 0; at < count; at++) {
                PutMessageResult result = store.putMessage(block[at]);
                if (!result.isOk()) {
                    refused.incrementAndGet();
                }
            }
            putNanos.addAndGet(System.nanoTime() - started);
        }
    }

    /** What a broker hands to its store for message `number`. */
    private MessageExtBrokerInner message(int number) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topics[number % topics.length]);
        message.setQueueId(number / topics.length % queues);
        message.setBody(body);
        MessageAccessor.putProperty(message, MessageConst.PROPERTY_UNIQ_CLIENT_MESSAGE_ID_KEYIDX, uniqueKey(number));
        message.setTags(TAGS[number % TAGS.length]);
        message.setKeys("order-" + number);
        message.setWaitStoreMsgOK(true);
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        return message;
    }

    /** As a producer makes them: 32 hex digits, the last 8 count the messages. */
    private static String uniqueKey(int number) {
        char[] text = "7F0000010001AABBCCDD001100000000".toCharArray();
        for (int at = text.length - 1; number != 0; at--, number >>>= 4) {
            text[at] = Character.forDigit(number & 15, 16);
        }
        return new String(text);
    }
}
