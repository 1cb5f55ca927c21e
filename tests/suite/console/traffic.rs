//! Requests and notifications that the pages show, with values that contain HTML.

use std::time::Duration;

use postern_harness::json;
use postern_harness::mail_server::REJECTED_DOMAIN;
use postern_harness::public_api::message;
use postern_harness::wait::until;
use postern_harness::{Client, Installation, Person};
use serde_json::Value;

use super::hostile;

/// What has happened.
pub(crate) struct Traffic {
    /// A registered user.
    pub(crate) person: Person,
    /// The address to which delivery has failed, and which is suppressed.
    pub(crate) rejected: String,
    /// The notification to it.
    pub(crate) failed: String,
    /// A notification that was sent.
    pub(crate) sent: String,
    /// A notification that waits for tomorrow.
    pub(crate) scheduled: String,
}

/// Returns an address that no other test uses.
pub(crate) fn new_address(name: &str) -> String {
    format!("{name}-{}@console.example", uuid::Uuid::new_v4().simple())
}

/// Sends requests and notifications, and waits until they are delivered or rejected.
pub(crate) async fn create(split: &Installation) -> Traffic {
    let surface = split.surface();
    let person = surface.register_as(&new_address("ada")).await;
    let wrong = json!({"email": person.email, "password": "wrong"});
    let refused = surface.client().post("/auth/login").json(&wrong);
    let refused = refused.header("user-agent", &hostile("agent"));
    let _ = refused.send().await.problem(401, "invalid_credentials");
    let forgot = json!({"email": person.email});
    let forgot = surface.client().post_json("/auth/password/forgot", &forgot);
    let _ = forgot.await.expect(204);
    let path = "/actors/%3Cimg%20src=x%20onerror=window.taken=1%3E";
    let _ = surface.client().fetch(path, 401).await;
    let service = split.development().service_token("auth").await;
    let service = surface.client().with_token(&service);
    let rejected = format!("eve-{}{REJECTED_DOMAIN}", uuid::Uuid::new_v4().simple());
    let day = Duration::from_secs(86_400);
    let tomorrow = json!(postern_core::Clock::system().now().plus(day));
    let sent = accept(&service, &person.email, None).await;
    let failed = accept(&service, &rejected, None).await;
    let scheduled = accept(&service, "o'neil&b@example.com", Some(tomorrow)).await;
    let sms = message("sms", &json!({"phone": "+14155550123"}));
    let _ = service.posted("/notifications", &sms, 201).await;
    for (id, status) in [(&sent, "SENT"), (&failed, "FAILED")] {
        // A mail that was accepted first may bounce.
        let path = format!("/notifications/{id}");
        let is_reached = async || service.read(&path).await["status"] == status;
        until(&format!("{id} is {status}"), is_reached).await;
    }
    Traffic {
        person,
        rejected,
        failed,
        sent,
        scheduled,
    }
}

async fn accept(service: &Client, email: &str, send_at: Option<Value>) -> String {
    let mut body = message("email", &json!({"email": email}));
    body["variables"]["name"] = hostile("name").into();
    if let Some(at) = send_at {
        body["sendAt"] = at;
    }
    let accepted = service.posted("/notifications", &body, 201).await;
    accepted.string("/notificationId")
}
