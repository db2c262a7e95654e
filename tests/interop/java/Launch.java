import java.util.Arrays;

/** Runs another class's main, and ends the process hard when stdin ends: when the test is gone. */
public final class Launch {
    private Launch() {
    }

    public static void main(String[] arguments) throws Exception {
        Thread guard = new Thread(() -> {
            try {
                while (System.in.read() >= 0) {
                    continue;
                }
            } catch (java.io.IOException gone) {
                System.err.println(gone);
            }
            Runtime.getRuntime().halt(9);
        }, "guard");
        guard.setDaemon(true);
        guard.start();
        Object rest = Arrays.copyOfRange(arguments, 1, arguments.length);
        Class.forName(arguments[0]).getMethod("main", String[].class).invoke(null, rest);
    }
}
