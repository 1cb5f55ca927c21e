//! A repeated request with the same key and body gets the same response, regardless of changes in
//! between; and the bound of what waits.

use std::time::Duration;

use super::*;
use crate::testing::{after, record_of, welcome_with};

fn with(name: &str, value: Value) -> Value {
    let mut body = welcome();
    body[name] = value;
    body
}

impl TestServer {
    async fn keyed(&self, key: &str, body: &Value) -> (u16, Value) {
        let headers = [("idempotency-key", key)];
        let (status, answer) = self.post("/notifications", &headers, body).await;
        (status.as_u16(), answer)
    }
}

#[tokio::test]
async fn repeated_request_with_past_times_or_removed_template_gets_first_response() {
    for (served, _database) in servers().await {
        let bodies = [
            with("sendAt", after(5).to_string().into()),
            with("expiresAt", after(60).to_string().into()),
        ];
        let mut first = Vec::new();
        for (key, body) in ["s", "e"].iter().zip(&bodies) {
            first.push(served.keyed(key, body).await);
            assert_eq!(first.last().expect("a response").0, 201);
        }
        served.clock.advance(Duration::from_secs(90));
        for ((key, body), first) in ["s", "e"].iter().zip(&bodies).zip(&first) {
            assert_eq!(&served.keyed(key, body).await, first);
        }
        let (status, problem) = served.keyed("e", &bodies[0]).await;
        let reused = (409, &"idempotency_key_reused".into());
        assert_eq!((status, &problem["code"]), reused);
        let (status, _) = served.keyed("new", &bodies[1]).await;
        assert_eq!(status, 422, "a new key does not excuse an expired time");
        let mut body = with("channel", "sms".into());
        body["recipient"] = json!({"phone": "+491701234567"});
        let first = served.keyed("k", &body).await;
        assert_eq!(first.0, 201);
        served.templates.store(Arc::new(welcome_with("")));
        assert_eq!(served.keyed("k", &body).await, first);
        let (status, problem) = served.keyed("new", &body).await;
        let unknown = (422, &"unknown_template".into());
        assert_eq!((status, &problem["code"]), unknown);
    }
}

#[tokio::test]
async fn waiting_and_scheduled_notifications_of_a_user_are_bounded() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        let creator = format!("user:{}/actors|ada", served.issuer);
        let row = |number: i64| {
            let mut row = record_of(number << 20);
            row.record.creator.clone_from(&creator);
            row.send_at = (number % 2 == 0).then_some(after(60));
            row
        };
        let rows: Vec<_> = (1..USER_QUOTA.cast_signed() * 5).map(row).collect();
        ok(store.accept(&rows)).await;
        let mut body = welcome();
        body["recipient"] = json!({"actorId": "ada"});
        let token = format!("Bearer {}", served.user_token("ada", &[], "actors"));
        let headers = [("authorization", &*token), ("idempotency-key", "last")];
        let last = served.post("/notifications", &headers, &body).await;
        assert_eq!(last.0, StatusCode::CREATED, "{}", last.1);
        let again = served.post("/notifications", &headers, &body).await;
        assert_eq!(again, last, "a repetition");
        let (status, problem) = served.post("/notifications", &headers[..1], &body).await;
        let limited = (StatusCode::TOO_MANY_REQUESTS, &"rate_limited".into());
        assert_eq!((status, &problem["code"]), limited);
        let batch = json!({"notifications": [&body]});
        let refused = served.post("/notification-batches", &headers[..1], &batch);
        assert_eq!(refused.await.0, StatusCode::TOO_MANY_REQUESTS);
        let (status, _) = served.post("/notifications", &[], &welcome()).await;
        assert_eq!(status, StatusCode::CREATED, "services are not limited");
    }
}
