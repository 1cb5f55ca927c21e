//! Incidents of what the services depend on: actor service, mail server, PostgreSQL and Redis.

use postern_harness::public_api::{PASSWORD, message, welcome};
use serde_json::json;

use super::fault_proxy::Fault;
use super::services::Services;
use postern_harness::wait::until;

pub(super) async fn plant(services: &mut Services) {
    slow_actor_service(services).await;
    closed_mail_port(services).await;
    lost_cache(services).await;
    lost_database(services).await;
}

/// The actor service accepts requests and does not answer.
async fn slow_actor_service(services: &mut Services) {
    let ada = services.split.surface().register().await;
    services.evidence.begin().await;
    services.actor.set(Fault::Stall);
    let message = welcome(&ada.id);
    let created = ada.client.posted("/notifications", &message, 201).await;
    let id = created.string("/notificationId");
    let _ = services.show(&id, "actor").await;
    let shown = services.readiness("postern-notify", "actor_service").await;
    services.prove("Actor service is slow", &shown).await;
    services.actor.set(Fault::None);
}

async fn closed_mail_port(services: &mut Services) {
    if let Some(mail) = services.mail.take() {
        mail.kill().await;
    }
    services.evidence.begin().await;
    let recipient = json!({"email": "ada@example.com"});
    let id = services.submit("email", recipient).await;
    let shown = services.show(&id, "provider_unreachable").await;
    // The process stays ready: other providers and channels still deliver.
    let reason = "provider_unreachable";
    let ready = services.readiness("postern-notify", reason).await;
    assert!(ready.contains(r#""ready":true"#), "{ready}");
    services.prove("SMTP port is closed", &shown).await;
}

async fn lost_cache(services: &mut Services) {
    services.evidence.begin().await;
    services.redis.kill().await;
    let unknown = "A".repeat(43);
    let exchange = services.split.surface().exchange(&unknown).await;
    exchange.problem(503, "unavailable");
    let shown = services.readiness("postern-auth", "cache").await;
    services.prove("Redis is unavailable", &shown).await;
    services.redis.restart().await;
    let surface = services.split.surface();
    let served = async || surface.exchange(&unknown).await.status == 401;
    until("an exchange after Redis is back", served).await;
}

/// PostgreSQL stops and starts again: the queue and sign-ins recover without a restart.
async fn lost_database(services: &mut Services) {
    let ada = services.split.surface().register().await;
    services.evidence.begin().await;
    services.database.kill().await;
    let body = message("email", &json!({"email": "ada@example.com"}));
    let refused = services.service.post_json("/notifications", &body).await;
    refused.problem(503, "unavailable");
    let shown = services.readiness("postern-notify", "database").await;
    services.prove("PostgreSQL is stopped", &shown).await;
    services.database.restart().await;
    let served = async || {
        let created = services.service.post_json("/notifications", &body).await;
        created.status == 201
    };
    until("an acceptance after PostgreSQL is back", served).await;
    let login = json!({"email": ada.email, "password": PASSWORD});
    let served = async || services.post("/auth/login", &login).await.status == 200;
    until("a sign-in after PostgreSQL is back", served).await;
}
