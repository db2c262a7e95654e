import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** mqadmin, many commands in one process; see Commands for the protocol. */
public final class Admin extends Commands {
    public static void main(String[] arguments) throws Exception {
        new Admin().run();
    }

    @Override
    Object call(String name, Command command) throws Exception {
        String[] words = command.list("words").stream().map(Object::toString).toArray(String[]::new);
        PrintStream before = System.out;
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream output = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(output);
        try {
            MQAdminStartup.main0(words, null);
        } finally {
            System.setOut(before);
        }
        return printed.toString(StandardCharsets.UTF_8);
    }
}
