import java.io.File;
import java.io.PrintStream;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;

/** A name node and a data node on 127.0.0.1, until stdin ends. Prints the two ports: RPC and HTTP. */
public final class Mini {
    public static void main(String[] arguments) throws Exception {
        PrintStream told = System.out;
        System.setOut(System.err); // where Hadoop logs to
        Configuration conf = new Configuration();
        conf.set("dfs.datanode.hostname", "127.0.0.1");
        conf.setBoolean("dfs.permissions.enabled", false);
        conf.setInt("dfs.replication", 1);
        conf.setLong("dfs.blocksize", 1 << 20);
        MiniDFSCluster cluster =
                new MiniDFSCluster.Builder(conf, new File(arguments[0])).numDataNodes(1).build();
        cluster.waitActive();
        told.println(cluster.getNameNodePort() + " "
                + cluster.getNameNode().getHttpAddress().getPort());
        told.flush();
        while (System.in.read() >= 0) {
            continue;
        }
        cluster.shutdown();
        System.exit(0);
    }
}
