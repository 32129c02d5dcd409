// A push handler: mkdir -p orders && java Handler.java        (PORT is 9000 unless it is set)
// An order's file tells that it was done: a message can come twice. With a database, use one transaction for both.
import com.sun.net.httpserver.HttpExchange;
import com.sun.net.httpserver.HttpServer;
import java.io.IOException;
import java.net.InetSocketAddress;
import java.net.URLEncoder;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.concurrent.Executors;
import java.util.regex.Pattern;

import static java.nio.charset.StandardCharsets.UTF_8;
import static java.nio.file.StandardCopyOption.REPLACE_EXISTING;

public class Handler {
  // An object with an item and a count, in any order. In earnest, let a library such as Jackson read JSON.
  static final Pattern ORDER = Pattern.compile("(?s)(?=.*\"item\"\\s*:\\s*\"([^\"]+)\").*\"count\"\\s*:\\s*(\\d+).*");

  static int handle(HttpExchange call) throws IOException {
    var headers = call.getRequestHeaders();
    var body = new String(call.getRequestBody().readAllBytes(), UTF_8);
    var order = ORDER.matcher(body);
    if (!order.matches()) return 422; // It can never be handled.
    var place = headers.getFirst("Keylane-Topic") + "-" + headers.getFirst("Keylane-Partition") + "-" + headers.getFirst("Keylane-Offset");
    var path = Path.of("orders", URLEncoder.encode(place, UTF_8));
    if (Files.exists(path)) return 200;
    Files.move(Files.writeString(Path.of(path + ".new"), body), path, REPLACE_EXISTING);
    System.out.println(headers.getFirst("Keylane-Key") + " orders " + order.group(2) + " " + order.group(1));
    return 200;
  }

  public static void main(String[] arguments) throws IOException {
    var port = Integer.parseInt(System.getenv().getOrDefault("PORT", "9000"));
    var server = HttpServer.create(new InetSocketAddress("127.0.0.1", port), 0);
    server.setExecutor(Executors.newFixedThreadPool(64));
    server.createContext("/", call -> {
      try {
        call.sendResponseHeaders(handle(call), -1);
      } catch (IOException error) {
        System.err.println(error);
        call.sendResponseHeaders(500, -1); // It comes again.
      }
    });
    server.start();
  }
}
