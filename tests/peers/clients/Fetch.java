import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;

/** The client of the JDK, which offers h2c with each request to an http URL. */
public class Fetch {
    public static void main(String[] args) throws Exception {
        var client = HttpClient.newHttpClient();
        for (String method : new String[] {"GET", "POST", "HEAD"}) {
            var body = method.equals("POST") ? BodyPublishers.ofString("hello") : BodyPublishers.noBody();
            var request = HttpRequest.newBuilder(URI.create(args[0])).method(method, body).build();
            var response = client.send(request, BodyHandlers.ofString());
            System.out.println("java " + method + " " + response.statusCode());
        }
    }
}
