//! Tests of mail to the unverified address of a user, through acceptance, the actor service and the
//! mail server.

use postern_core::Clock;
use serde_json::{Value, json};

use super::*;
use crate::address::{ActorId, Recipient};
use crate::delivery::provider::Provider;
use crate::notification::Priority;
use crate::testing::actor_service::TestActorService;
use crate::testing::{START, TestReplica, draft, ok, stores, user_of};

/// Returns status and reason of a `welcome` that a user sends to itself.
async fn welcomed(rig: &mut TestReplica, user: &str) -> (Value, Value) {
    let mut draft = draft(Priority::Normal);
    let actor: ActorId = serde_json::from_value(json!(user)).expect("an actor");
    draft.request.recipient = Recipient::ActorId(actor);
    let id = ok(rig.submit_as(user_of(user), draft, None)).await.id;
    rig.step().await;
    let view = rig.view(id).await;
    (view["status"].clone(), view["reason"].clone())
}

#[tokio::test]
async fn unverified_address_gets_mail_up_to_its_quota() {
    let service = TestActorService::start().await;
    for (store, _database) in stores().await {
        let clock = Clock::manual(START);
        let server = server(Script::Yes).await;
        let actors = service.client(&clock);
        let provider = Provider::Smtp(Box::new(smtp(server.port)));
        let mut rig = TestReplica::delivering(&store, &clock, provider, actors).await;
        let sent = (json!("SENT"), Value::Null);
        let refused = (json!("FAILED"), json!("UNVERIFIED_ADDRESS_QUOTA"));
        for _ in 0..5 {
            assert_eq!(welcomed(&mut rig, "ada").await, sent);
        }
        for (user, expected, reason) in [
            ("ada", &refused, "sixth message of the hour"),
            ("thief", &refused, "another caller, the same address"),
            ("bob", &sent, "another caller and address"),
        ] {
            assert_eq!(welcomed(&mut rig, user).await, *expected, "{reason}");
        }
        rig.advance(3600).await;
        assert_eq!(welcomed(&mut rig, "ada").await, sent, "another hour");
        let caught = server.caught.lock().await;
        let recipients = caught.iter().map(|mail| mail.envelope[1].as_str());
        let ada = "RCPT TO:<ada@example.com>";
        let expected = [ada, ada, ada, ada, ada, "RCPT TO:<bob@example.com>", ada];
        assert_eq!(recipients.collect::<Vec<_>>(), expected);
        rig.stop.cancel();
    }
}
