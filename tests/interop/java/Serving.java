import java.io.BufferedWriter;
import java.io.ByteArrayOutputStream;
import java.lang.reflect.Method;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.*; // MessageExtBrokerInner is here in 5.x,
import org.apache.rocketmq.store.*; // and here in 4.x

/** What a broker does with an open store: it serves its queues, takes messages, deletes what is too old. */
final class Serving {
    private static final InetSocketAddress HOST = new InetSocketAddress("127.0.0.1", 10911);
    private static final int MESSAGES = 32;
    private static final int INNER_BATCH_FLAG = 1 << 7; // MessageSysFlag of 5.x

    private Serving() {
    }

    /** Topic and queue of every queue that the store knows, in order. */
    private static List<Map.Entry<String, Integer>> queues(DefaultMessageStore store) {
        List<Map.Entry<String, Integer>> result = new ArrayList<>();
        for (Map.Entry<String, ?> topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            for (Object id : new TreeMap<>((Map<?, ?>) topic.getValue()).keySet()) {
                result.add(Map.entry(topic.getKey(), (Integer) id));
            }
        }
        return result;
    }

    /** Minimum and maximum offset of every queue. */
    static Object ranges(DefaultMessageStore store) throws Exception {
        List<Object> rows = new ArrayList<>();
        for (Map.Entry<String, Integer> queue : queues(store)) {
            rows.add(Commands.map("topic", queue.getKey(), "queueId", queue.getValue(),
                "minOffset", store.getMinOffsetInQueue(queue.getKey(), queue.getValue()),
                "maxOffset", store.getMaxOffsetInQueue(queue.getKey(), queue.getValue())));
        }
        return rows;
    }

    /**
     * Read every queue from its minimum on, pull by pull, as a broker answers and a client decodes: the
     * messages of one pull are one buffer, and the decoder ends at the first piece that is none. A line for
     * each message goes to the output; the answer is the pulls that brought the reader no further.
     */
    static Object serve(DefaultMessageStore store, Path output) throws Exception {
        List<Object> stuck = new ArrayList<>();
        try (BufferedWriter lines = Files.newBufferedWriter(output)) {
            for (Map.Entry<String, Integer> queue : queues(store)) {
                long max = store.getMaxOffsetInQueue(queue.getKey(), queue.getValue());
                long offset = Math.max(0, store.getMinOffsetInQueue(queue.getKey(), queue.getValue()));
                while (offset < max) {
                    GetMessageResult found = store.getMessage(
                        "lab", queue.getKey(), queue.getValue(), offset, MESSAGES, null);
                    write(lines, queue, found);
                    found.release();
                    if (found.getNextBeginOffset() <= offset) {
                        stuck.add(Commands.map("topic", queue.getKey(), "queueId", queue.getValue(),
                            "offset", offset, "status", found.getStatus()));
                        break;
                    }
                    offset = found.getNextBeginOffset();
                }
            }
        }
        return stuck;
    }

    private static void write(BufferedWriter lines, Map.Entry<String, Integer> queue, GetMessageResult found)
        throws Exception {
        ByteArrayOutputStream all = new ByteArrayOutputStream();
        for (ByteBuffer buffer : found.getMessageBufferList()) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.get(bytes);
            all.write(bytes);
        }
        for (MessageExt message : MessageDecoder.decodes(ByteBuffer.wrap(all.toByteArray()), true)) {
            lines.write(Json.write(Commands.map("queue", queue.getKey(), "id", queue.getValue(),
                "topic", message.getTopic(), "queueId", message.getQueueId(),
                "queueOffset", message.getQueueOffset(), "physicalOffset", message.getCommitLogOffset(),
                "size", message.getStoreSize(), "tags", message.getTags())));
            lines.newLine();
        }
    }

    /** Put a message to a queue, or a batch record of `inner` messages; the answer is where it went. */
    static Object put(DefaultMessageStore store, String topic, int queueId, int inner) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody("put by the lab".getBytes(StandardCharsets.UTF_8));
        message.setKeys("lab-put");
        if (inner > 0) {
            message.setSysFlag(INNER_BATCH_FLAG);
            MessageAccessor.putProperty(message, "INNER_NUM", Integer.toString(inner));
        }
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(HOST);
        message.setStoreHost(HOST);
        PutMessageResult result = store.putMessage(message);
        return Commands.map("status", result.getPutMessageStatus(),
            "queueOffset", result.getAppendMessageResult().getLogicsOffset(),
            "physicalOffset", result.getAppendMessageResult().getWroteOffset());
    }

    /** One round of what the store's timers do about old files, now: the log, then queues and index. */
    static Object clean(DefaultMessageStore store) throws Exception {
        List<Object> done = new ArrayList<>();
        Map<String, Object> owners = new LinkedHashMap<>();
        owners.put("cleanFilesPeriodically", store);
        owners.put("cleanQueueFilesPeriodically", queueCleaner(store));
        for (Map.Entry<String, Object> owner : owners.entrySet()) {
            Method method = method(owner.getValue().getClass(), owner.getKey());
            if (method != null) {
                method.setAccessible(true);
                method.invoke(owner.getValue());
                done.add(owner.getKey());
            }
        }
        return done;
    }

    /** 5.4 cleans its queues in the store of the queues. */
    private static Object queueCleaner(DefaultMessageStore store) throws Exception {
        Method getter = method(store.getClass(), "getQueueStore");
        Object queues = getter == null ? null : getter.invoke(store);
        return queues != null && method(queues.getClass(), "cleanQueueFilesPeriodically") != null ? queues : store;
    }

    private static Method method(Class<?> type, String name) {
        for (Class<?> each = type; each != null; each = each.getSuperclass()) {
            for (Method method : each.getDeclaredMethods()) {
                if (method.getName().equals(name) && method.getParameterCount() == 0) {
                    return method;
                }
            }
        }
        return null;
    }
}
