//! Tests of mail to the unverified address of a user, through acceptance, the actor service and the
//! mail server.

use std::time::Duration;

use axum::extract::Path;
use axum::routing::{get, post};
use axum::{Json, Router};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use postern_common::Clock;
use postern_common::config::{self, Env};
use postern_common::identity::IdentityConfig;
use serde_json::{Value, json};

use super::*;
use crate::address::{ActorId, Recipient};
use crate::delivery::provider::Provider;
use crate::notification::Priority;
use crate::principal::Principal;
use crate::testing::{self, START, TestReplica, draft, stores};

/// Starts the service pool and the actor service. Every actor has an unverified address of its own,
/// except `thief`, whose profile has Ada's.
async fn services() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
    let url = format!("http://{}", listener.local_addr().expect("address"));
    let router = Router::new()
        .route("/", post(sign_in))
        .route("/actors/{id}", get(profile));
    tokio::spawn(async move { axum::serve(listener, router).await });
    url
}

async fn sign_in() -> ([(&'static str, &'static str); 1], String) {
    let (issued, expires) = (START.unix_seconds(), START.unix_seconds() + 86_400);
    let claims =
        json!({"iat": issued, "exp": expires, "token_use": "id", "custom:service_id": "notify"})
            .to_string();
    let token = format!("e30.{}.c2ln", URL_SAFE_NO_PAD.encode(claims));
    let result =
        json!({"IdToken": token, "AccessToken": token, "ExpiresIn": 86_400, "TokenType": "Bearer"});
    let answer = json!({"ChallengeParameters": {}, "AuthenticationResult": result});
    (
        [("content-type", "application/x-amz-json-1.1")],
        answer.to_string(),
    )
}

async fn profile(Path(id): Path<String>) -> Json<Value> {
    let name = if id == "thief" { "ada" } else { &id };
    Json(json!({"actorId": id, "email": format!("{name}@example.com"), "emailVerified": false}))
}

fn identity(endpoint: &str) -> IdentityConfig {
    let env = Env::from([
        ("AWS_ENDPOINT_URL_COGNITO_IDENTITY_PROVIDER", endpoint),
        ("IDP_ACTOR_POOL_ID", "us-west-2_actors"),
        ("IDP_ACTOR_CLIENT_ID", "actors"),
        ("IDP_SERVICE_POOL_ID", "us-west-2_services"),
        ("IDP_SERVICE_CLIENT_ID", "services"),
        ("IDP_SERVICE_CLIENT_SECRET", "secret"),
        ("IDP_SERVICE_ACCOUNT_USERNAME", "notify"),
        ("IDP_SERVICE_ACCOUNT_PASSWORD", "password"),
    ]);
    config::parse("test", "", |root| IdentityConfig::read(root, &env)).expect("complete")
}

/// Returns status and reason of a `welcome` that a user sends to itself.
async fn welcomed(rig: &mut TestReplica, user: &str) -> (Value, Value) {
    let mut draft = draft(Priority::Normal);
    let actor: ActorId = serde_json::from_value(json!(user)).expect("an actor");
    draft.request.recipient = Recipient::ActorId(actor);
    let principal = Principal {
        creator: format!("user:pool|{user}").into(),
        actor: Some(user.to_owned()),
    };
    let id = rig
        .submit_as(principal, draft, None)
        .await
        .expect("no error")
        .id;
    rig.step().await;
    let view = rig.view(id).await;
    (view["status"].clone(), view["reason"].clone())
}

#[tokio::test]
async fn unverified_address_gets_mail_up_to_its_quota() {
    let url = services().await;
    for (store, _database) in stores().await {
        let clock = Clock::manual(START);
        let server = server(Script::Yes).await;
        let actors = testing::actors(&url, &identity(&url), &clock);
        let provider = Provider::Smtp(Box::new(smtp(server.port)));
        let mut rig = TestReplica::delivering(&store, &clock, provider, actors).await;
        let (sent, refused) = (
            (json!("SENT"), Value::Null),
            (json!("FAILED"), json!("UNVERIFIED_ADDRESS_QUOTA")),
        );
        for _ in 0..5 {
            assert_eq!(welcomed(&mut rig, "ada").await, sent);
        }
        assert_eq!(
            welcomed(&mut rig, "ada").await,
            refused,
            "sixth message of the hour"
        );
        assert_eq!(
            welcomed(&mut rig, "thief").await,
            refused,
            "another caller, the same address"
        );
        assert_eq!(
            welcomed(&mut rig, "bob").await,
            sent,
            "another caller and address"
        );
        clock.advance(Duration::from_secs(3600));
        rig.workers.step().await.expect("lease renewal succeeds");
        assert_eq!(welcomed(&mut rig, "ada").await, sent, "another hour");
        let caught = server.caught.lock().await;
        let recipients = caught.iter().map(|mail| mail.envelope[1].as_str());
        let ada = "RCPT TO:<ada@example.com>";
        let expected = [ada, ada, ada, ada, ada, "RCPT TO:<bob@example.com>", ada];
        assert_eq!(recipients.collect::<Vec<_>>(), expected);
        rig.stop.cancel();
    }
}
