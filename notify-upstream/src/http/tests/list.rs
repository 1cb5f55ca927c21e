//! Lists of notifications, and who reads them; status requests and their tags.

use super::*;
use crate::notification::order_at;

impl TestServer {
    async fn list(&self, query: &str, service: &str) -> (StatusCode, Value) {
        self.list_with(query, &self.service_token(service)).await
    }

    async fn list_with(&self, query: &str, token: &str) -> (StatusCode, Value) {
        let url = format!("{}/notifications{query}", self.url);
        let answer = self.client.get(url).bearer_auth(token).send().await;
        let answer = answer.expect("a response");
        (answer.status(), answer.json().await.unwrap_or_default())
    }

    pub(super) fn user_token(&self, subject: &str, groups: &[&str], issuer: &str) -> String {
        let now = START.unix_seconds();
        let claims = json!({
            "iss": format!("{}/{issuer}", self.issuer), "sub": subject, "client_id": "actors",
            "token_use": "access", "cognito:groups": groups, "iat": now, "exp": now + 600
        });
        self.sign(&claims)
    }

    async fn create(&self, service: &str, recipient: &str, template: &str) -> String {
        let token = format!("Bearer {}", self.service_token(service));
        let body = json!({"channel": "email", "recipient": {"email": recipient}, "template": template,
            "variables": {"name": "Ada"}});
        self.accepted_as(&token, &body).await
    }
}

fn ids(page: &Value) -> Vec<&str> {
    let listed = page["notifications"].as_array().expect("a list").iter();
    let ids = listed.map(|view| view["notificationId"].as_str().expect("an id"));
    ids.collect()
}

#[tokio::test]
async fn services_list_their_own_and_readers_all() {
    for (served, _database) in servers().await {
        let one = served.create("auth", "ada@example.com", "welcome").await;
        let two = served.create("notify", "Ada@Example.com", "welcome").await;
        let three = served.create("auth", "eve@example.com", "welcome").await;
        let (_, own) = served.list("", "auth").await;
        assert_eq!(ids(&own), [&*three, &*one]);
        assert!(own["notifications"][0].get("events").is_none());
        assert_eq!(own["nextCursor"], Value::Null);
        let (_, all) = served.list("", "support").await;
        assert_eq!(ids(&all), [&*three, &*two, &*one]);
        let (_, ada) = served.list("?recipient=ada%40example.com", "support").await;
        assert_eq!(ids(&ada), [&*two, &*one]);
        let (_, ada) = served.list("?recipient=ADA@example.com", "auth").await;
        assert_eq!(ids(&ada), [&*one], "another service's is not listed");
        // Readers read, and cancel nothing.
        assert_eq!(served.get(&one, "support", None).await.0, StatusCode::OK);
        let foreign = served.get(&one, "notify", None).await.0;
        assert_eq!(foreign, StatusCode::NOT_FOUND);
        let (status, _) = served.cancel(&one, "support").await;
        assert_eq!(status, StatusCode::NOT_FOUND);
    }
}

#[tokio::test]
async fn only_the_group_of_a_verified_user_reads_all() {
    for (served, _database) in servers().await {
        let id = served.create("auth", "ada@example.com", "welcome").await;
        let admin = served.user_token("root", &["admin"], "actors");
        assert_eq!(ids(&served.list_with("", &admin).await.1), [&*id]);
        for (groups, issuer) in [
            (&["users"][..], "actors"),
            (&["Admin"], "actors"),
            (&["admin"], "partners"),
        ] {
            let token = served.user_token("ada", groups, issuer);
            let (status, page) = served.list_with("", &token).await;
            assert_eq!(status, StatusCode::OK, "{groups:?} {issuer}");
            assert!(ids(&page).is_empty(), "{groups:?} {issuer}");
        }
        // Identity headers that a client sends have no effect.
        let token = served.user_token("ada", &[], "actors");
        let url = format!("{}/notifications/{id}", served.url);
        let request = served.client.get(url).bearer_auth(&token);
        let request = request
            .header("x-postern-groups", "admin")
            .header("x-postern-service", "support")
            .header("x-postern-kind", "service");
        let answer = request.send().await.expect("a response");
        assert_eq!(answer.status(), StatusCode::NOT_FOUND);
        let unsigned = admin.rsplit_once('.').expect("a JWT").0.to_owned() + ".AAAA";
        let refused = served.list_with("", &unsigned).await.0;
        assert_eq!(refused, StatusCode::UNAUTHORIZED);
    }
}

#[tokio::test]
async fn pages_continue_without_gaps_and_repetitions() {
    for (mut served, _database) in servers().await {
        let mut created = Vec::new();
        for number in 0..7 {
            let to = ["ada@example.com", "eve@example.com"][number % 2];
            created.push(served.create("auth", to, "welcome").await);
        }
        created.reverse();
        let (mut found, mut query) = (Vec::new(), "?limit=3".to_owned());
        loop {
            let (_, page) = served.list(&query, "auth").await;
            found.extend(ids(&page).into_iter().map(str::to_owned));
            let Some(cursor) = page["nextCursor"].as_str() else {
                break;
            };
            query = format!("?limit=3&cursor={cursor}");
        }
        assert_eq!(found, created);
        // A delivery claims no more than there are permits.
        for _ in 0..3 {
            served.deliver().await;
        }
        for (query, count) in [
            ("?status=SENT", 7),
            ("?status=QUEUED", 0),
            ("?channel=sms", 0),
            ("?channel=email&template=welcome", 7),
            ("?template=other", 0),
            ("?recipient=eve@example.com&status=SENT", 3),
            ("?from=2025-11-20T00:53:20Z", 7),
            ("?to=2025-11-20T00:53:20Z", 0),
            ("?from=2030-01-01T00:00:00Z", 0),
        ] {
            let (_, page) = served.list(query, "auth").await;
            assert_eq!(ids(&page).len(), count, "{query}");
        }
    }
}

#[tokio::test]
async fn hostile_parameters_are_refused_or_match_nothing() {
    for (served, _database) in servers().await {
        served.create("auth", "ada@example.com", "welcome").await;
        served.create("auth", "ada@example.com", "welcome").await;
        let injected = "ada@example.com'%20OR%201=1--";
        for recipient in ["%25", "_da@example.com", injected, "*"] {
            let query = format!("?recipient={recipient}");
            let (status, page) = served.list(&query, "support").await;
            assert_eq!((status, ids(&page).len()), (StatusCode::OK, 0), "{query}");
        }
        let (_, page) = served.list("?limit=1", "auth").await;
        let cursor = page["nextCursor"]
            .as_str()
            .expect("a second page")
            .to_owned();
        let mut tampered = cursor.clone().into_bytes();
        tampered[3] = if tampered[3] == b'A' { b'B' } else { b'A' };
        let tampered = String::from_utf8(tampered).expect("ASCII");
        let own = format!("?limit=1&cursor={cursor}");
        for (query, caller) in [
            (&*format!("?limit=1&cursor={tampered}"), "auth"),
            (&*format!("{own}&status=SENT"), "auth"),
            // The cursor of another caller's list.
            (&own, "notify"),
            ("?recipient=%00", "auth"),
            ("?cursor=x", "auth"),
            ("?cursor=", "auth"),
            ("?limit=0", "auth"),
            ("?limit=201", "auth"),
            ("?status=sent", "auth"),
            ("?from=yesterday", "auth"),
            ("?order=asc", "auth"),
            ("?limit=1&limit=2", "auth"),
        ] {
            let (status, problem) = served.list(query, caller).await;
            assert_eq!(status, StatusCode::BAD_REQUEST, "{query} {problem}");
        }
    }
}

#[tokio::test]
async fn page_of_a_rare_match_ends_after_a_bounded_scan() {
    for (store, _database) in stores().await {
        let served = served(&store).await;
        let mut batch = Vec::new();
        for number in 0..2500 {
            let mut row = crate::testing::record_of(order_at(START) + number);
            if number == 0 {
                row.record.template = "rare".to_owned();
            }
            batch.push(row);
        }
        for part in batch.chunks(500) {
            ok(store.accept(part)).await;
        }
        let (mut query, mut pages) = ("?template=rare".to_owned(), 0);
        let found = loop {
            let (_, page) = served.list(&query, "support").await;
            pages += 1;
            if let [id] = ids(&page)[..] {
                break id.to_owned();
            }
            let cursor = page["nextCursor"].as_str().expect("more");
            query = format!("?template=rare&cursor={cursor}");
        };
        assert_eq!((found, pages), (batch[0].id.to_string(), 3));
    }
}

#[tokio::test]
async fn replicas_return_the_same_status_and_tag() {
    for (store, _database) in stores().await {
        // SQLite has a single process.
        if !store.is_shared() {
            continue;
        }
        let (mut first, second) = (served(&store).await, served(&store).await);
        let id = first.accepted(&welcome()).await;
        let (status, queued, view) = second.get(&id, "auth", None).await;
        // The two replicas have different issuers; the same service is the same creator at both.
        assert_eq!(status, StatusCode::OK);
        assert_eq!(view["status"], "QUEUED");
        first.deliver().await;
        let (_, tag, view) = first.get(&id, "auth", None).await;
        assert_eq!(view["status"], "SENT");
        let (_, _, view) = second.get(&id, "auth", queued.as_deref()).await;
        assert_eq!(view["status"], "SENT");
        let (status, ..) = second.get(&id, "auth", tag.as_deref()).await;
        assert_eq!(status, StatusCode::NOT_MODIFIED);
    }
}
