//! Notifications to actors: the address is looked up at acceptance, with the token of the user who
//! calls, and again at delivery, with the token of this service.

use super::*;

fn to_actor(actor: &str) -> Value {
    let mut body = welcome();
    body["recipient"] = json!({ "actorId": actor });
    body
}

/// Starts a service over each store, beside an actor service.
async fn servers_beside() -> Vec<(TestServer, TestActorService, TestDatabase)> {
    let mut servers = Vec::new();
    for (store, database) in stores().await {
        let actors = TestActorService::start().await;
        let client = actors.client(&Clock::manual(START));
        let (served, committer) = served_beside(&store, Limits::default(), client).await;
        tokio::spawn(committer.run());
        servers.push((served, actors, database));
    }
    servers
}

impl TestServer {
    async fn send_to_actor(&self, token: &str, key: &str, actor: &str) -> (u16, Value) {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", &*bearer), ("idempotency-key", key)];
        let body = to_actor(actor);
        let (status, answer) = self.post("/notifications", &headers, &body).await;
        match status {
            StatusCode::CREATED => (201, answer["notificationId"].clone()),
            status => (status.as_u16(), answer["errors"].clone()),
        }
    }
}

#[tokio::test]
async fn lookup_at_acceptance_carries_the_users_token_and_that_at_delivery_ours() {
    for (mut served, actors, _database) in servers_beside().await {
        let user = served.user_token("ada", &[], "actors");
        let service = served.service_token("auth");
        let (status, _) = served.send_to_actor(&user, "", "ada").await;
        assert_eq!(status, 201);
        assert_eq!(actors.asked(), [("ada".to_owned(), user.clone())]);
        served.deliver().await;
        let own = service_account_token();
        // The replica of these tests delivers without an actor service.
        assert_eq!(actors.asked(), []);
        let (status, _) = served.send_to_actor(&service, "", "bob").await;
        assert_eq!(status, 201);
        let items: Vec<Value> = (0..50).map(|_| to_actor("ada")).collect();
        let batch = json!({ "notifications": items });
        let bearer = format!("Bearer {user}");
        let headers = [("authorization", &*bearer)];
        let (status, _) = served.post("/notification-batches", &headers, &batch).await;
        assert_eq!(status, StatusCode::OK);
        // One lookup for a batch to one actor.
        let expected = [("bob".to_owned(), own), ("ada".to_owned(), user)];
        assert_eq!(actors.asked(), expected);
    }
}

#[tokio::test]
async fn actor_without_a_usable_address_is_refused_at_once() {
    for (served, _actors, _database) in servers_beside().await {
        let service = served.service_token("auth");
        let unreachable = [
            ("nobody", "actor_unknown"),
            ("mute", "actor_has_no_address"),
        ];
        for (actor, code) in unreachable {
            for token in [&service, &served.user_token(actor, &[], "actors")] {
                let (status, errors) = served.send_to_actor(token, "", actor).await;
                assert_eq!(status, 422);
                assert_eq!(errors[0]["pointer"], "/recipient/actorId");
                assert_eq!(errors[0]["code"], code);
            }
        }
        let ada = served.user_token("ada", &[], "actors");
        let first = served.send_to_actor(&ada, "first", "ada").await;
        for _ in 0..4 {
            let repeated = served.send_to_actor(&ada, "first", "ada").await;
            assert_eq!(repeated, first, "a repeated key counts once");
            assert_eq!(served.send_to_actor(&ada, "", "ada").await.0, 201);
        }
        let (status, errors) = served.send_to_actor(&ada, "", "ada").await;
        assert_eq!(status, 422, "the sixth in an hour");
        assert_eq!(errors[0]["code"], "unverified_address_quota");
        assert_eq!(served.send_to_actor(&ada, "first", "ada").await, first);
    }
}
