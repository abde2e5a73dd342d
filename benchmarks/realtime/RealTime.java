// Spark's real-time mode with transformWithState in the JVM: a count per key, told with every record. Memory to memory: no source that survives a crash, no sink on disk, no
// commit per record. Prints one line: {"p50": ..., "p99": ..., "longest": ..., "rows": ...} in milliseconds, of the records behind the warm-up.
//
//     RealTime RATE WARM_UP_SECONDS SECONDS KEYS CHECKPOINT

import java.util.ArrayList;
import java.util.Collections;
import java.util.List;

import org.apache.spark.api.java.function.MapFunction;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.ForeachWriter;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.streaming.sources.LowLatencyMemoryStream;
import org.apache.spark.sql.streaming.OutputMode;
import org.apache.spark.sql.streaming.StatefulProcessor;
import org.apache.spark.sql.streaming.StreamingQuery;
import org.apache.spark.sql.streaming.TTLConfig;
import org.apache.spark.sql.streaming.TimeMode;
import org.apache.spark.sql.streaming.TimerValues;
import org.apache.spark.sql.streaming.Trigger;
import org.apache.spark.sql.streaming.ValueState;

import scala.jdk.javaapi.CollectionConverters;

public class RealTime {
    static final List<double[]> SEEN = Collections.synchronizedList(new ArrayList<>()); // when it was sent, and how long it took

    public static class Counter extends StatefulProcessor<String, String, String> {
        private transient ValueState<Long> count;

        @Override
        public void init(OutputMode outputMode, TimeMode timeMode) {
            count = getHandle().getValueState("count", Encoders.LONG(), TTLConfig.NONE());
        }

        @Override
        public scala.collection.Iterator<String> handleInputRows(String key, scala.collection.Iterator<String> rows, TimerValues timers) {
            List<String> out = new ArrayList<>();
            while (rows.hasNext()) {
                String row = rows.next();
                long n = (count.exists() ? count.get() : 0L) + 1;
                count.update(n);
                out.add(key + "|" + n + "|" + row.substring(row.indexOf('|') + 1));
            }
            return CollectionConverters.asScala(out.iterator());
        }
    }

    public static class Clocked extends ForeachWriter<String> {
        @Override
        public boolean open(long partition, long epoch) {
            return true;
        }

        @Override
        public void process(String row) {
            double now = System.nanoTime() / 1e6, sent = Long.parseLong(row.substring(row.lastIndexOf('|') + 1)) / 1e6;
            SEEN.add(new double[] {sent, now - sent});
        }

        @Override
        public void close(Throwable error) {
        }
    }

    public static void main(String[] args) throws Exception {
        int rate = Integer.parseInt(args[0]), warmUp = Integer.parseInt(args[1]), seconds = Integer.parseInt(args[2]), keys = Integer.parseInt(args[3]);
        SparkSession spark = SparkSession.builder()
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.streaming.stateStore.providerClass", "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider")
            .getOrCreate();
        spark.sparkContext().setLogLevel("ERROR");
        LowLatencyMemoryStream<String> stream = LowLatencyMemoryStream.apply(spark, 2, Encoders.STRING());
        Dataset<String> counted = stream.toDS()
            .groupByKey((MapFunction<String, String>) row -> row.substring(0, row.indexOf('|')), Encoders.STRING())
            .transformWithState(new Counter(), TimeMode.None(), OutputMode.Update(), Encoders.STRING());
        StreamingQuery query = counted.writeStream()
            .outputMode("update")
            .option("checkpointLocation", args[4])
            .trigger(Trigger.RealTime("5 seconds"))
            .foreach(new Clocked())
            .start();
        long began = System.nanoTime(), sent = 0;
        while (System.nanoTime() - began < (long) (warmUp + seconds) * 1_000_000_000L) {
            long due = (System.nanoTime() - began) * rate / 1_000_000_000L;
            for (; sent < due; sent++) {
                String row = "key-" + sent % keys + "|" + System.nanoTime();
                stream.addData(CollectionConverters.asScala(List.of(row)));
            }
            Thread.sleep(2);
        }
        Thread.sleep(3000);
        query.stop();
        double from = began / 1e6 + warmUp * 1000.0;
        double[] took = SEEN.stream().filter(one -> one[0] > from).mapToDouble(one -> one[1]).sorted().toArray();
        System.out.printf("{\"p50\": %.1f, \"p99\": %.1f, \"longest\": %.1f, \"rows\": %d}%n", took[took.length / 2], took[(int) (took.length * 0.99)],
            took[took.length - 1], SEEN.size());
        spark.stop();
    }
}
