package orders;

import java.util.HexFormat;
import org.springframework.boot.SpringApplication;
import org.springframework.boot.autoconfigure.SpringBootApplication;
import org.springframework.web.bind.annotation.PostMapping;
import org.springframework.web.bind.annotation.RequestBody;
import org.springframework.web.bind.annotation.RequestHeader;
import org.springframework.web.bind.annotation.RestController;

@SpringBootApplication
@RestController
public class OrdersApplication {
  record Order(String item, int count) {}

  public static void main(String[] args) {
    SpringApplication.run(OrdersApplication.class, args);
  }

  @PostMapping("/orders")
  void orders(@RequestBody Order order, @RequestHeader(name = "Keylane-Key", required = false) String key) {
    System.out.println(key + " " + order.count() + " " + order.item());
  }

  @PostMapping("/files")
  void files(@RequestBody byte[] body, @RequestHeader("Content-Type") String type) {
    System.out.println(type + " " + HexFormat.of().formatHex(body));
  }
}
