// Runs Kafka's command line tools one after the other in one JVM, for suite-tools: starting a JVM for each takes
// longer than the tool itself.
//
// A line of standard input is one run: class, input and arguments with 0x1f between them (0x1e stands for a line
// feed inside). The answer is a line "STATUS BYTES_OUT BYTES_ERR" and then that many bytes. A tool that leaves
// through Kafka's Exit ends its run there; what it prints behind that is dropped, as a process would drop it.
import java.io.BufferedReader;
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;

import org.apache.kafka.common.utils.internals.Exit;

public class Tools {
    /** Thrown where a process would end. */
    static final class Ended extends Error {
        Ended() {
            super(null, null, false, false);
        }
    }

    static Integer status;
    static byte[] out;
    static byte[] err;
    static ByteArrayOutputStream outSink;
    static ByteArrayOutputStream errSink;

    static synchronized void end(int code, String message) {
        if (status == null) {
            if (message != null)
                System.err.println(message);
            System.out.flush();
            System.err.flush();
            status = code;
            out = outSink.toByteArray();
            err = errSink.toByteArray();
        }
    }

    public static void main(String[] ignored) throws Exception {
        PrintStream answers = System.out;
        Exit.Procedure procedure = (code, message) -> {
            end(code, message);
            throw new Ended();
        };
        Exit.setExitProcedure(procedure);
        Exit.setHaltProcedure(procedure);
        Exit.setShutdownHookAdder((name, hook) -> { });
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] fields = line.replace('\u001e', '\n').split("\u001f", -1);
            outSink = new ByteArrayOutputStream();
            errSink = new ByteArrayOutputStream();
            status = null;
            System.setOut(new PrintStream(outSink, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(errSink, true, StandardCharsets.UTF_8));
            System.setIn(new ByteArrayInputStream(fields[1].getBytes(StandardCharsets.UTF_8)));
            try {
                Class.forName(fields[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(fields, 2, fields.length));
                end(0, null);
            } catch (InvocationTargetException e) {
                if (!(e.getCause() instanceof Ended))
                    e.getCause().printStackTrace(System.err);
                end(1, null);
            }
            answers.println(status + " " + out.length + " " + err.length);
            answers.write(out, 0, out.length);
            answers.write(err, 0, err.length);
            answers.flush();
        }
    }
}
