import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.util.Map;
import java.util.TreeMap;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.store.DispatchRequest;

/** What the library says about one record, as maps. */
final class Records {
    private Records() {
    }

    /** The fields of a dispatch request that come from the record. */
    static Map<String, Object> dispatch(DispatchRequest request) throws Exception {
        Map<String, Object> row = Commands.map(
            "size", request.getMsgSize(),
            "topic", request.getTopic(),
            "queueId", request.getQueueId(),
            "storedPhysicalOffset", request.getCommitLogOffset(),
            "queueOffset", request.getConsumeQueueOffset(),
            "tagsCode", request.getTagsCode(),
            "storeTimestamp", request.getStoreTimestamp(),
            "keys", request.getKeys(),
            "uniqKey", request.getUniqKey(),
            "sysFlag", request.getSysFlag(),
            "preparedTransactionOffset", request.getPreparedTransactionOffset(),
            "properties", sorted(request.getPropertiesMap()));
        for (java.lang.reflect.Method method : DispatchRequest.class.getMethods()) {
            if (method.getName().equals("getBatchSize")) {
                row.put("batchSize", method.invoke(request));
            } else if (method.getName().equals("getMsgBaseOffset")) {
                row.put("baseOffset", method.invoke(request));
            }
        }
        return row;
    }

    /** The record as consumers see it, the body as stored; null when the decoder gives up. */
    static Map<String, Object> decoded(ByteBuffer buffer) throws Exception {
        MessageExt message = MessageDecoder.decode(buffer, true, false);
        return message == null ? null : Commands.map(
            "topic", message.getTopic(),
            "queueId", message.getQueueId(),
            "queueOffset", message.getQueueOffset(),
            "physicalOffset", message.getCommitLogOffset(),
            "size", message.getStoreSize(),
            "flag", message.getFlag(),
            "sysFlag", message.getSysFlag(),
            "bodyCrc", message.getBodyCRC(),
            "bornTimestamp", message.getBornTimestamp(),
            "bornHost", host((InetSocketAddress) message.getBornHost()),
            "storeTimestamp", message.getStoreTimestamp(),
            "storeHost", host((InetSocketAddress) message.getStoreHost()),
            "reconsumeTimes", message.getReconsumeTimes(),
            "preparedTransactionOffset", message.getPreparedTransactionOffset(),
            "bodySha256", Commands.sha256(message.getBody()),
            "properties", sorted(message.getProperties()));
    }

    private static Map<String, String> sorted(Map<String, String> properties) {
        return properties == null ? null : new TreeMap<>(properties);
    }

    private static String host(InetSocketAddress host) {
        return Commands.hex(host.getAddress().getAddress()) + ":" + host.getPort();
    }
}
