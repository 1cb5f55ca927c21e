import org.openapitools.client.infrastructure.Serializer
import org.openapitools.client.models.CreatedNotification

fun main() {
    val response = """{"notificationId": "1", "status": "PAUSED", "channel": "email", "priority": "NORMAL",
        "createdAt": "2026-11-20T07:30:00.000Z", "later": 1}"""
    val created = Serializer.gson.fromJson(response, CreatedNotification::class.java)
    check(created.notificationId == "1") { created }
}
