# JVM: javac, jar, java; the program maps and locks files of the lane.
cat >Work.java <<'JAVA'
import java.io.RandomAccessFile;
import java.nio.channels.FileChannel.MapMode;
import java.nio.file.*;
import java.util.stream.*;
public class Work {
    record Row(int number, String text) {}
    public static void main(String[] args) throws Exception {
        Path dir = Files.createDirectories(Path.of("rows"));
        for (int n = 0; n < 500; n++) Files.writeString(dir.resolve("r" + n), new Row(n, "x".repeat(n)).toString());
        long bytes;
        try (Stream<Path> all = Files.walk(dir)) {
            bytes = all.filter(Files::isRegularFile).mapToLong(p -> p.toFile().length()).sum();
        }
        try (var file = new RandomAccessFile("map", "rw"); var lock = file.getChannel().lock()) {
            var map = file.getChannel().map(MapMode.READ_WRITE, 0, 1 << 20);
            for (int n = 0; n < map.capacity(); n += 4096) map.put(n, (byte) 7);
            map.force();
        }
        Files.move(dir.resolve("r0"), Path.of("moved"), StandardCopyOption.ATOMIC_MOVE);
        System.out.println(bytes + " " + Files.size(Path.of("map")) + " " + Files.readAllBytes(Path.of("map"))[8192]);
    }
}
JAVA
javac Work.java
jar cfe work.jar Work ./*.class
$OTHER java -jar work.jar >out
java -Xshare:off -XX:ErrorFile=/dev/null -cp . Work >out2 2>&1 || { tail -3 out2; exit 1; }
cmp out out2
cat out
