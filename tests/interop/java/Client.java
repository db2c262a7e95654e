import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.factory.MQClientInstance;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** An ordinary producer, transaction producer, push and pull consumers; see Commands for the protocol. */
public final class Client extends Commands {
    private static final int TIMEOUT_MS = 60_000;
    /** How long every send fails before the broker is taken for gone, and how long one may take. */
    private static final int LOST_MS = 3_000;
    private static final int SEND_MS = 10_000;

    private String nameServer;
    private DefaultMQProducer producer;
    private TransactionMQProducer transactions;
    private DefaultMQPullConsumer puller;
    private final List<DefaultMQPushConsumer> consumers = new ArrayList<>();
    private final List<DefaultLitePullConsumer> lite = new ArrayList<>();

    public static void main(String[] arguments) throws Exception {
        new Client().run();
    }

    @Override
    Object call(String name, Command command) throws Exception {
        switch (name) {
            case "connect":
                return connect(command.text("name_server"));
            case "send":
                return sent(send(command));
            case "send_batch":
                return sendBatch(command);
            case "send_half":
                return sent(transactions.sendMessageInTransaction(message(command), command.text("then")));
            case "produce":
                return produce(command);
            case "listen_for_checks":
                return listenForChecks(command.text("group"), command.text("topic"));
            case "consume":
                return consume(command.text("group"), command.map("topics"));
            case "consume_sql":
                return consumeSql(command.text("group"), command.text("topic"), command.text("sql"));
            case "consume_concurrently":
                return consumeConcurrently(command.text("group"), command.map("topics"));
            case "consume_later":
                return consumeLater(command.text("group"), command.text("topic"), command.integer("one_in"));
            case "consume_broadcast":
                return consumeBroadcast(command.text("group"), command.text("topic"));
            case "consume_since":
                return consumeSince(command.text("group"), command.text("topic"), command.text("time"));
            case "consume_lite":
                return consumeLite(command.text("group"), command.text("topic"), command.text("tags"));
            case "queues":
                return queues(command.text("topic"));
            case "pull":
                return pull(command);
            case "query":
                return query(command);
            case "view":
                return row(puller.viewMessage(command.text("topic"), command.text("id")));
            case "search_offset":
                return puller.searchOffset(queue(command), command.number("time"));
            case "close":
                return close();
            default:
                throw new IllegalArgumentException(name);
        }
    }

    private Object connect(String address) throws Exception {
        nameServer = address;
        producer = new DefaultMQProducer("lab_producer");
        producer.setNamesrvAddr(address);
        producer.setSendMsgTimeout(TIMEOUT_MS);
        producer.setRetryTimesWhenSendFailed(0);
        producer.start();
        puller = new DefaultMQPullConsumer("lab_puller");
        puller.setNamesrvAddr(address);
        puller.start();
        return null;
    }

    /** A transaction producer of a group; its listener decides by the argument, and at checks by "check". */
    private Object listenForChecks(String group, String topic) throws Exception {
        transactions = new TransactionMQProducer(group);
        transactions.setNamesrvAddr(nameServer);
        transactions.setSendMsgTimeout(TIMEOUT_MS);
        transactions.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object then) {
                return state((String) then);
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                event("check", group, message);
                return state(message.getProperty("check"));
            }
        });
        transactions.start();
        // A broker can ask only a group that it knows: the heartbeat goes to the brokers of known topics.
        MQClientInstance instance = transactions.getDefaultMQProducerImpl().getMqClientFactory();
        instance.updateTopicRouteInfoFromNameServer(topic);
        instance.sendHeartbeatToAllBrokerWithLock();
        return null;
    }

    private static LocalTransactionState state(String name) {
        return "commit".equals(name) ? LocalTransactionState.COMMIT_MESSAGE
            : "rollback".equals(name) ? LocalTransactionState.ROLLBACK_MESSAGE : LocalTransactionState.UNKNOW;
    }

    private static Message message(Command command) {
        byte[] body = Base64.getDecoder().decode(command.text("body"));
        Message message = new Message(command.text("topic"), command.text("tags"), command.text("keys"), body);
        command.map("properties").forEach((key, value) -> message.putUserProperty(key.toString(), value.toString()));
        if (command.has("delay_level")) {
            message.setDelayTimeLevel(command.integer("delay_level"));
        }
        if (command.has("flag")) {
            message.setFlag(command.integer("flag"));
        }
        return message;
    }

    private SendResult send(Command command) throws Exception {
        return command.has("queue_id")
            ? producer.send(message(command), queue(command)) : producer.send(message(command));
    }

    private Object sendBatch(Command command) throws Exception {
        List<Message> messages = new ArrayList<>();
        for (Object each : command.list("messages")) {
            messages.add(message(new Command((Map<?, ?>) each)));
        }
        return sent(producer.send(messages));
    }

    private static Object sent(SendResult result) {
        return map("status", result.getSendStatus(), "topic", result.getMessageQueue().getTopic(),
            "queueId", result.getMessageQueue().getQueueId(), "queueOffset", result.getQueueOffset(),
            "msgId", result.getMsgId(), "offsetMsgId", result.getOffsetMsgId());
    }

    /** Send from several threads until the broker is gone; every acknowledged message is an event. */
    private Object produce(Command command) {
        AtomicLong numbers = new AtomicLong();
        for (int i = 0; i < command.integer("threads"); i++) {
            Thread thread = new Thread(() -> produceUntilLost(command, numbers), "producer");
            thread.setDaemon(true);
            thread.start();
        }
        return null;
    }

    /** A refused send alone is no end: a broker that has just started, or is busy, refuses some. */
    private void produceUntilLost(Command command, AtomicLong numbers) {
        long giveUpAt = System.currentTimeMillis() + TIMEOUT_MS;
        while (true) {
            try {
                produceNext(command, numbers.getAndIncrement());
                giveUpAt = System.currentTimeMillis() + LOST_MS;
            } catch (Exception refused) {
                if (System.currentTimeMillis() > giveUpAt) {
                    say("event", map("kind", "lost", "why", refused.toString()));
                    return;
                }
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(50));
            }
        }
    }

    private void produceNext(Command command, long number) throws Exception {
        String topic = command.text("topic") + number % 3;
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < (number % 5 == 0 ? 10 : 1); i++) {
            String key = number + "-" + i;
            byte[] body = (key + "|" + "x".repeat((int) (number * 131 % 3000))).getBytes(StandardCharsets.UTF_8);
            messages.add(new Message(topic, "tag" + number % 4, key, body));
        }
        if (messages.size() == 1 && number % 7 == 0) {
            messages.get(0).setDelayTimeLevel(1);
        }
        SendResult result = messages.size() == 1
            ? producer.send(messages.get(0), SEND_MS) : producer.send(messages, SEND_MS);
        say("event", map("kind", "sent", "number", number, "count", messages.size(),
            "delayed", messages.get(0).getDelayTimeLevel() > 0, "result", sent(result)));
    }

    /** A push consumer of a new group, in queue order, from the first message on; messages are events. */
    private Object consume(String group, Map<?, ?> topics) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        for (Map.Entry<?, ?> topic : topics.entrySet()) {
            consumer.subscribe(topic.getKey().toString(), topic.getValue().toString());
        }
        return started(consumer, group);
    }

    /** The same of one topic, with a filter that the broker evaluates. */
    private Object consumeSql(String group, String topic, String sql) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.subscribe(topic, MessageSelector.bySql(sql));
        return started(consumer, group);
    }

    private Object started(DefaultMQPushConsumer consumer, String group) throws Exception {
        consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
            messages.forEach(message -> event("consumed", group, message));
            return ConsumeOrderlyStatus.SUCCESS;
        });
        return listening(consumer);
    }

    /** A push consumer that gets messages of a queue from several threads, in no order. */
    private Object consumeConcurrently(String group, Map<?, ?> topics) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        for (Map.Entry<?, ?> topic : topics.entrySet()) {
            consumer.subscribe(topic.getKey().toString(), topic.getValue().toString());
        }
        return listening(concurrent(consumer, group));
    }

    /** The same of one topic, with all messages for every member, which keeps its offsets itself. */
    private Object consumeBroadcast(String group, String topic) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        for (Method method : DefaultMQPushConsumer.class.getMethods()) {
            if (method.getName().equals("setMessageModel")) { // 5.x has moved the type to another package
                method.invoke(consumer, method.getParameterTypes()[0].getField("BROADCASTING").get(null));
            }
        }
        consumer.subscribe(topic, "*");
        return listening(concurrent(consumer, group));
    }

    /** The same of one topic, from a time (yyyyMMddHHmmss, UTC) on. */
    private Object consumeSince(String group, String topic, String time) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.setConsumeTimestamp(time);
        consumer.subscribe(topic, "*");
        return listening(concurrent(consumer, group), ConsumeFromWhere.CONSUME_FROM_TIMESTAMP);
    }

    private DefaultMQPushConsumer concurrent(DefaultMQPushConsumer consumer, String group) {
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> event("consumed", group, message));
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return consumer;
    }

    /** A push consumer that refuses one of so many messages when it gets it for the first time. */
    private Object consumeLater(String group, String topic, long oneIn) throws Exception {
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(group);
        consumer.subscribe(topic, "*");
        Set<String> refused = ConcurrentHashMap.newKeySet();
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            messages.forEach(message -> event("consumed", group, message));
            boolean later = false;
            for (MessageExt message : messages) {
                String place = message.getQueueId() + " " + message.getQueueOffset();
                later |= message.getQueueOffset() % oneIn == 0 && refused.add(place);
            }
            return later ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        return listening(consumer);
    }

    /** A lite consumer, which polls; its messages are events too. */
    private Object consumeLite(String group, String topic, String tags) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(group);
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.subscribe(topic, tags);
        consumer.start();
        lite.add(consumer);
        Thread thread = new Thread(() -> {
            while (consumer.isRunning()) {
                consumer.poll(500).forEach(message -> event("consumed", group, message));
            }
        }, "lite");
        thread.setDaemon(true);
        thread.start();
        return null;
    }

    private Object listening(DefaultMQPushConsumer consumer) throws Exception {
        return listening(consumer, ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
    }

    private Object listening(DefaultMQPushConsumer consumer, ConsumeFromWhere begins) throws Exception {
        consumer.setNamesrvAddr(nameServer);
        consumer.setConsumeFromWhere(begins);
        consumer.start();
        consumers.add(consumer);
        return null;
    }

    private static void event(String kind, String group, MessageExt message) {
        Map<String, Object> row = map("kind", kind, "group", group, "time", System.currentTimeMillis());
        try {
            row.put("message", row(message));
        } catch (Exception error) {
            row.put("error", error.toString());
        }
        say("event", row);
    }

    private Object queues(String topic) throws Exception {
        Map<String, Object> result = new TreeMap<>();
        for (MessageQueue queue : puller.fetchSubscribeMessageQueues(topic)) {
            result.put(String.valueOf(queue.getQueueId()),
                map("min", puller.minOffset(queue), "max", puller.maxOffset(queue)));
        }
        return result;
    }

    private MessageQueue queue(Command command) throws Exception {
        for (MessageQueue queue : puller.fetchSubscribeMessageQueues(command.text("topic"))) {
            if (queue.getQueueId() == command.integer("queue_id")) {
                return queue;
            }
        }
        throw new IllegalArgumentException("no such queue");
    }

    private Object pull(Command command) throws Exception {
        PullResult found = puller.pull(queue(command), command.text("tags"), command.number("offset"),
            command.integer("max"), TIMEOUT_MS);
        return map("status", found.getPullStatus(), "next", found.getNextBeginOffset(), "min", found.getMinOffset(),
            "max", found.getMaxOffset(), "messages", rows(found.getMsgFoundList()));
    }

    private Object query(Command command) throws Exception {
        QueryResult found = puller.queryMessage(command.text("topic"), command.text("key"),
            command.integer("max"), command.number("begin"), command.number("end"));
        return rows(found.getMessageList());
    }

    private static List<Object> rows(List<MessageExt> messages) throws Exception {
        List<Object> result = new ArrayList<>();
        for (MessageExt message : messages == null ? List.<MessageExt>of() : messages) {
            result.add(row(message));
        }
        return result;
    }

    private static Map<String, Object> row(MessageExt message) throws Exception {
        return map("topic", message.getTopic(), "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(), "physicalOffset", message.getCommitLogOffset(),
            "msgId", message.getMsgId(), "tags", message.getTags(), "keys", message.getKeys(),
            "flag", message.getFlag(), "sysFlag", message.getSysFlag(),
            "bornTimestamp", message.getBornTimestamp(), "storeTimestamp", message.getStoreTimestamp(),
            "reconsumeTimes", message.getReconsumeTimes(),
            "bodyLength", message.getBody() == null ? 0 : message.getBody().length,
            "bodySha256", sha256(message.getBody()), "properties", new TreeMap<>(message.getProperties()));
    }

    private Object close() {
        consumers.forEach(DefaultMQPushConsumer::shutdown);
        consumers.clear();
        lite.forEach(DefaultLitePullConsumer::shutdown);
        lite.clear();
        if (transactions != null) {
            transactions.shutdown();
        }
        puller.shutdown();
        producer.shutdown();
        return null;
    }
}
