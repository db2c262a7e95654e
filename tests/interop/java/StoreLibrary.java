import java.io.BufferedWriter;
import java.lang.reflect.Constructor;
import java.lang.reflect.Method;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.store.CommitLog;
import org.apache.rocketmq.store.DefaultMessageFilter;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.DispatchRequest;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.MessageFilter;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.SelectMappedBufferResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/** The store of one version in this process, asked command by command; see Commands for the protocol. */
public final class StoreLibrary extends Commands {
    private DefaultMessageStore store;

    public static void main(String[] arguments) throws Exception {
        new StoreLibrary().run();
    }

    @Override
    Object call(String name, Command command) throws Exception {
        switch (name) {
            case "load":
                return load(command.text("store"), command.map("settings"));
            case "open":
                return open(command.text("store"), command.map("settings"));
            case "start":
                store.start();
                while (store.dispatchBehindBytes() > 0) {
                    Thread.sleep(5);
                }
                return offsets();
            case "offsets":
                return offsets();
            case "judge":
                return judge(Paths.get(command.text("input")), Paths.get(command.text("output")));
            case "walk":
                return walk(Paths.get(command.text("output")));
            case "queues":
                return queues();
            case "query":
                return query(command);
            case "get":
                return get(command);
            case "time":
                return store.getOffsetInQueueByTime(
                    command.text("topic"), command.integer("queue_id"), command.number("time"));
            case "ranges":
                return Serving.ranges(store);
            case "serve":
                return Serving.serve(store, Paths.get(command.text("output")));
            case "put":
                return Serving.put(store, command.text("topic"), command.integer("queue_id"),
                    command.has("inner") ? command.integer("inner") : 0);
            case "clean":
                return Serving.clean(store);
            case "used_ratio":
                return UtilAll.getDiskPartitionSpaceUsedPercent(command.text("path"));
            case "shutdown":
                store.shutdown();
                return null;
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private Object load(String root, Map<?, ?> settings) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        Properties values = new Properties();
        settings.forEach((name, value) -> values.setProperty(name.toString(), value.toString()));
        values.setProperty("storePathRootDir", root);
        values.setProperty("storePathCommitLog", Paths.get(root, "commitlog").toString());
        MixAll.properties2Object(values, config);
        config.setHaListenPort(0);
        Class<?> kind = "defaultRocksDB".equals(settings.get("storeType"))
            ? Class.forName("org.apache.rocketmq.store.RocksDBMessageStore") : DefaultMessageStore.class;
        store = make(kind, config, new BrokerStatsManager("lab", true), new BrokerConfig());
        if ("true".equals(settings.get("rocksdbCQDoubleWriteEnable"))) {
            for (Method method : store.getClass().getMethods()) {
                if (method.getName().equals("enableRocksdbCQWrite")) { // a broker of 5.3 calls it
                    method.invoke(store);
                }
            }
        }
        return store.load();
    }

    /** As a broker sees it: what load says, and the error that a broker would end with. */
    private Object open(String root, Map<?, ?> settings) throws Exception {
        try {
            return map("load", load(root, settings));
        } catch (Error error) { // OutOfMemoryError: load catches exceptions only
            return map("load", false, "loadException", error.toString());
        }
    }

    /** 5.x wants the topics as well: they say which of them have batch queues. */
    private static DefaultMessageStore make(Class<?> kind, Object... first) throws Exception {
        Constructor<?> maker = kind.getConstructors()[0];
        List<Object> arguments = new ArrayList<>(List.of(first[0], first[1]));
        arguments.add(null);
        arguments.add(first[2]);
        if (maker.getParameterCount() > arguments.size()) {
            arguments.add(topics(((MessageStoreConfig) first[0]).getStorePathRootDir()));
        }
        return (DefaultMessageStore) maker.newInstance(arguments.toArray());
    }

    private static Object topics(String root) throws Exception {
        Path path = Paths.get(root, "config", "topics.json");
        if (!Files.exists(path)) {
            return new ConcurrentHashMap<>();
        }
        Class<?> kind = Class.forName("org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper");
        String text = new String(Files.readAllBytes(path), StandardCharsets.UTF_8);
        Object wrapper = org.apache.rocketmq.remoting.protocol.RemotingSerializable.fromJson(text, kind);
        return kind.getMethod("getTopicConfigTable").invoke(wrapper);
    }

    private Map<String, Object> offsets() {
        return map("min", store.getMinPhyOffset(), "max", store.getMaxPhyOffset());
    }

    /** The two versions of the check differ by one argument, checkDupInfo. */
    private static DispatchRequest check(CommitLog log, ByteBuffer buffer) throws Exception {
        for (Method method : CommitLog.class.getMethods()) {
            if (method.getName().equals("checkMessageAndReturnSize") && method.getParameterCount() == CHECK) {
                return (DispatchRequest) (CHECK == 4
                    ? method.invoke(log, buffer, true, false, true)
                    : method.invoke(log, buffer, true, true));
            }
        }
        throw new NoSuchMethodException("checkMessageAndReturnSize");
    }

    private static final int CHECK = (int) java.util.Arrays.stream(CommitLog.class.getMethods())
        .filter(method -> method.getName().equals("checkMessageAndReturnSize"))
        .mapToInt(Method::getParameterCount).max().getAsInt();

    /** Judge the buffers of a file, each behind its length as i32; a line for each goes to the output. */
    private Object judge(Path input, Path output) throws Exception {
        ByteBuffer all = ByteBuffer.wrap(Files.readAllBytes(input));
        int count = 0;
        try (BufferedWriter lines = Files.newBufferedWriter(output)) {
            for (; all.hasRemaining(); count++) {
                byte[] bytes = new byte[all.getInt()];
                all.get(bytes);
                lines.write(Json.write(verdict(bytes)));
                lines.newLine();
            }
        }
        return count;
    }

    private Map<String, Object> verdict(byte[] bytes) throws Exception {
        DispatchRequest request;
        try {
            request = check(store.getCommitLog(), ByteBuffer.wrap(bytes));
        } catch (java.lang.reflect.InvocationTargetException error) {
            if (error.getCause() instanceof OutOfMemoryError) {
                return map("thrown", "OutOfMemoryError");
            }
            throw error;
        }
        Map<String, Object> result = map("size", request.getMsgSize(), "success", request.isSuccess());
        if (request.isSuccess() && request.getMsgSize() > 0) {
            result.put("dispatch", Records.dispatch(request));
            result.put("message", Records.decoded(ByteBuffer.wrap(bytes)));
        }
        return result;
    }

    /** One line per record of the log, read as recovery reads it; the answer is where the walk ended. */
    private Object walk(Path output) throws Exception {
        CommitLog log = store.getCommitLog();
        long offset = log.getMinOffset();
        try (BufferedWriter lines = Files.newBufferedWriter(output)) {
            while (offset < log.getMaxOffset()) {
                SelectMappedBufferResult data = log.getData(offset);
                ByteBuffer buffer = data.getByteBuffer();
                DispatchRequest request = check(log, buffer.duplicate());
                if (!request.isSuccess()) {
                    data.release();
                    break;
                }
                if (request.getMsgSize() == 0) {
                    offset = log.rollNextFile(offset);
                } else {
                    byte[] bytes = new byte[request.getMsgSize()];
                    buffer.get(bytes);
                    Map<String, Object> row = map("physicalOffset", offset, "sha256", sha256(bytes));
                    row.putAll(Records.dispatch(request));
                    row.put("message", Records.decoded(ByteBuffer.wrap(bytes)));
                    lines.write(Json.write(row));
                    lines.newLine();
                    offset += bytes.length;
                }
                data.release();
            }
        }
        return offset;
    }

    /** Per topic and queue: min, max, and the physical offset of every queue offset between them. */
    private Object queues() throws Exception {
        Map<String, Object> result = new TreeMap<>();
        for (Map.Entry<String, ?> topic : new TreeMap<>(store.getConsumeQueueTable()).entrySet()) {
            Map<String, Object> queues = new LinkedHashMap<>();
            for (Object id : new TreeMap<>((Map<?, ?>) topic.getValue()).keySet()) {
                int queue = (Integer) id;
                long min = store.getMinOffsetInQueue(topic.getKey(), queue);
                long max = store.getMaxOffsetInQueue(topic.getKey(), queue);
                List<Long> places = new ArrayList<>();
                for (long offset = min; offset < max; offset++) {
                    places.add(store.getCommitLogOffsetInQueue(topic.getKey(), queue, offset));
                }
                queues.put(id.toString(), map("min", min, "max", max, "physicalOffsets", places));
            }
            result.put(topic.getKey(), queues);
        }
        return result;
    }

    private Object query(Command command) throws Exception {
        QueryMessageResult found = store.queryMessage(command.text("topic"), command.text("key"),
            command.integer("max"), command.number("begin"), command.number("end"));
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer buffer : found.getMessageBufferList()) {
            offsets.add(buffer.getLong(28));
        }
        found.release();
        return offsets;
    }

    /** What a broker asks of the consume queue for a consumer of tags; its parts moved to other packages in 5.x. */
    private static MessageFilter filter(String topic, String tags) throws Exception {
        Constructor<?> maker = DefaultMessageFilter.class.getConstructors()[0];
        String kind = maker.getParameterTypes()[0].getName().replace("heartbeat.SubscriptionData", "filter.FilterAPI");
        Class<?> api = Class.forName(kind.replace("common.protocol.", "common."));
        Method parse = api.getMethod("buildSubscriptionData", String.class, String.class);
        return (MessageFilter) maker.newInstance(parse.invoke(null, topic, tags));
    }

    private Object get(Command command) throws Exception {
        GetMessageResult found = store.getMessage("lab", command.text("topic"), command.integer("queue_id"),
            command.number("offset"), command.integer("max"),
            command.has("tags") ? filter(command.text("topic"), command.text("tags")) : null);
        List<Long> offsets = new ArrayList<>();
        for (ByteBuffer buffer : found.getMessageBufferList()) {
            offsets.add(buffer.getLong(28));
        }
        found.release();
        return map("status", found.getStatus(), "next", found.getNextBeginOffset(), "min", found.getMinOffset(),
            "max", found.getMaxOffset(), "count", found.getMessageCount(), "bytes", found.getBufferTotalSize(),
            "physicalOffsets", offsets);
    }
}
