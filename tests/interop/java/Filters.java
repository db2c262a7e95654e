import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.broker.filter.MessageEvaluationContext;
import org.apache.rocketmq.filter.FilterFactory;
import org.apache.rocketmq.filter.expression.Expression;

/** What the broker's SQL92 filter says: {"do":"judge","cases":[{"text":..,"properties":[{..},..]},..]}. */
public final class Filters extends Commands {
    public static void main(String[] arguments) throws Exception {
        new Filters().run();
    }

    @Override
    Object call(String name, Command command) throws Exception {
        List<Object> answers = new ArrayList<>();
        for (Object each : command.list("cases")) {
            answers.add(judged(new Command((Map<?, ?>) each)));
        }
        return answers;
    }

    /** One answer per property map: true, false, null, "thrown"; "refused" for a text that is no filter. */
    private static Object judged(Command one) {
        Expression expression;
        try {
            expression = FilterFactory.INSTANCE.get("SQL92").compile(one.text("text"));
        } catch (Throwable error) {
            return "refused";
        }
        List<Object> answers = new ArrayList<>();
        for (Object properties : one.list("properties")) {
            Map<String, String> texts = new HashMap<>();
            ((Map<?, ?>) properties).forEach((key, value) -> texts.put((String) key, (String) value));
            try {
                answers.add(expression.evaluate(new MessageEvaluationContext(texts)));
            } catch (Throwable error) {
                answers.add("thrown");
            }
        }
        return answers;
    }
}
