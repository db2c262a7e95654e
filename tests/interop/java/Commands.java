import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;

/**
 * A program that is told what to do line by line: a JSON object with "do" comes in on stdin, one line
 * with the answer goes out, {"error": ...} when it failed. Lines with "event" may come between. When
 * stdin ends the program ends, so it never outlives the test that started it.
 */
abstract class Commands {
    private static final PrintStream ANSWERS =
        new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.US_ASCII);

    abstract Object call(String name, Command command) throws Exception;

    final void run() throws Exception {
        System.setOut(System.err);
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            Command command = new Command(RemotingSerializable.fromJson(line, HashMap.class));
            try {
                say("answer", call(command.text("do"), command));
            } catch (Throwable error) {
                error.printStackTrace();
                say("error", error.toString());
            }
        }
        Runtime.getRuntime().halt(0);
    }

    static void say(String kind, Object value) {
        Map<String, Object> line = new LinkedHashMap<>();
        line.put(kind, value);
        synchronized (ANSWERS) {
            ANSWERS.println(Json.write(line));
        }
    }

    /** Names and values by turns as a map that keeps their order. */
    static Map<String, Object> map(Object... items) {
        Map<String, Object> result = new LinkedHashMap<>();
        for (int i = 0; i < items.length; i += 2) {
            result.put((String) items[i], items[i + 1]);
        }
        return result;
    }

    static String hex(byte[] bytes) {
        StringBuilder out = new StringBuilder(bytes.length * 2);
        for (byte each : bytes) {
            out.append(Character.forDigit(each >> 4 & 15, 16)).append(Character.forDigit(each & 15, 16));
        }
        return out.toString();
    }

    static String sha256(byte[] bytes) throws Exception {
        return bytes == null ? null : hex(java.security.MessageDigest.getInstance("SHA-256").digest(bytes));
    }

    /** The arguments of one command. */
    static final class Command {
        private final Map<?, ?> values;

        Command(Map<?, ?> values) {
            this.values = values;
        }

        boolean has(String name) {
            return values.get(name) != null;
        }

        String text(String name) {
            Object value = values.get(name);
            return value == null ? null : value.toString();
        }

        long number(String name) {
            return ((Number) values.get(name)).longValue();
        }

        int integer(String name) {
            return Math.toIntExact(number(name));
        }

        boolean flag(String name) {
            return Boolean.TRUE.equals(values.get(name));
        }

        Map<?, ?> map(String name) {
            return has(name) ? (Map<?, ?>) values.get(name) : Map.of();
        }

        List<?> list(String name) {
            return has(name) ? (List<?>) values.get(name) : List.of();
        }
    }
}
