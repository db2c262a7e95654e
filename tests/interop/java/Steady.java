import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.message.Message;

/** A producer at a steady rate: {"do":"send","topic":..,"rate":messages per second,"count":..,"threads":..}. */
public final class Steady extends Commands {
    private static final int BATCH = 50;
    private static final int TIMEOUT_MS = 30_000;
    private static final String FILLER = "x".repeat(180);

    private final AtomicLong sent = new AtomicLong();
    private DefaultMQProducer producer;

    public static void main(String[] arguments) throws Exception {
        new Steady().run();
    }

    @Override
    Object call(String name, Command command) throws Exception {
        switch (name) {
            case "connect":
                producer = new DefaultMQProducer("lab_steady");
                producer.setNamesrvAddr(command.text("name_server"));
                producer.setSendMsgTimeout(TIMEOUT_MS);
                producer.start();
                return null;
            case "send":
                return send(command);
            default:
                throw new IllegalArgumentException(name);
        }
    }

    /** Sends all of them; the answer is how long it took, ms. */
    private Object send(Command command) throws Exception {
        int threads = command.integer("threads");
        long count = command.number("count") / threads;
        double pauseNs = 1e9 * BATCH * threads / command.number("rate");
        CountDownLatch done = new CountDownLatch(threads);
        long start = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            int thread = i;
            new Thread(() -> {
                try {
                    sendSteadily(command.text("topic"), thread, count, start, pauseNs);
                } finally {
                    done.countDown();
                }
            }, "producer").start();
        }
        while (!done.await(500, TimeUnit.MILLISECONDS)) {
            say("event", map("kind", "sent", "count", sent.get()));
        }
        return map("sent", sent.get(), "ms", (System.nanoTime() - start) / 1_000_000);
    }

    private void sendSteadily(String topic, int thread, long count, long start, double pauseNs) {
        for (long number = 0, batch = 0; number < count; batch++) {
            long wait = start + (long) (batch * pauseNs) - System.nanoTime();
            if (wait > 0) {
                LockSupport.parkNanos(wait);
            }
            List<Message> messages = new ArrayList<>();
            for (int i = 0; i < BATCH && number + i < count; i++) {
                String key = thread + "-" + (number + i);
                byte[] body = (key + "|" + FILLER).getBytes(StandardCharsets.UTF_8);
                messages.add(new Message(topic, "tag" + (number + i) % 4, key, body));
            }
            try {
                producer.send(messages);
                number += messages.size();
                sent.addAndGet(messages.size());
            } catch (Exception refused) {
                LockSupport.parkNanos(TimeUnit.MILLISECONDS.toNanos(20));
            }
        }
    }
}
